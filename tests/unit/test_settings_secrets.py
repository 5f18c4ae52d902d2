import pytest

from service.errors import ConfigurationError
from service.settings import load_settings


def test_secrets_are_files_named_like_their_settings(tmp_path):
    (tmp_path / "database_url").write_text("postgresql://file/braid\n")
    (tmp_path / "secret_key").write_text("")
    (tmp_path / "..data").mkdir()
    settings = load_settings({"BRAID_SECRETS_DIR": str(tmp_path)})
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == "postgresql://file/braid"
    assert settings.secret_key is None


def test_a_variable_goes_before_a_file_unless_it_is_empty(tmp_path):
    (tmp_path / "database_url").write_text("postgresql://file/braid")
    for given, used in (("postgresql://variable", "variable"), ("", "file/braid")):
        environment = {"BRAID_SECRETS_DIR": str(tmp_path), "BRAID_DATABASE_URL": given}
        settings = load_settings(environment)
        assert settings.database_url is not None
        assert settings.database_url.get_secret_value() == f"postgresql://{used.split('//')[-1]}"


def test_an_unknown_file_or_no_folder_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match="BRAID_SECRETS_DIR cannot be read"):
        load_settings({"BRAID_SECRETS_DIR": str(tmp_path / "none")})
    (tmp_path / "databse_url").write_text("x")
    with pytest.raises(ConfigurationError, match="unknown setting BRAID_DATABSE_URL"):
        load_settings({"BRAID_SECRETS_DIR": str(tmp_path)})


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("BRAID_MAX_CONCURRENT_SEARCHES", "")
    assert load_settings().max_concurrent_searches is None
