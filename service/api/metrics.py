"""What is measured, for Prometheus. No key is asked for, so nothing of tenants is told."""

from litestar import Response, get

from service.metrics import TEXT_FORMAT, prometheus_text


@get(
    "/metrics",
    media_type="text/plain",
    summary="Metrics in the text format of Prometheus",
    tags=["health"],
)
async def metrics() -> Response[str]:
    """Every metric of this process; `docs/reference/metrics.md` explains them."""
    return Response(prometheus_text(), media_type=TEXT_FORMAT)
