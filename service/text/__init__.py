"""Pure preparation of texts and queries for the lexical index."""

from service.text.lexemes import lexeme_hash as lexeme_hash
from service.text.lexemes import quote_lexeme as quote_lexeme
from service.text.lexemes import tsvector_literal as tsvector_literal
from service.text.normalize import clean as clean
from service.text.prepare import Analyzer as Analyzer
from service.text.prepare import Prepared as Prepared
from service.text.prepare import prepare as prepare
from service.text.stop_words import STOP_WORD_CANDIDATES as STOP_WORD_CANDIDATES
from service.text.tokens import clip_tokens as clip_tokens
from service.text.tokens import estimate_tokens as estimate_tokens
from service.text.websearch import Clause as Clause
from service.text.websearch import parse_websearch as parse_websearch
