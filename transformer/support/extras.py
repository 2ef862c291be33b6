"""Packages that only some commands need, by the extra that installs them."""

# Names of modules. requirements/EXTRA.txt pins the packages.
EXTRAS = {
    "data": ("array_record", "pyarrow", "tensorflow_datasets"),
    "interop": ("flatbuffers", "safetensors", "yaml"),
    "report": ("altair", "jinja2", "vl_convert"),
    "serve": ("multipart", "prometheus_client", "py3langid", "sentencex", "starlette", "uvicorn"),
    "sweep": ("optuna", "psycopg", "sklearn", "sqlalchemy"),
    "trackers": ("mlflow", "wandb"),
}


def install_command(extra: str) -> str:
    return f"python -m pip install -r requirements/{extra}.txt"


def installation_advice(error: ModuleNotFoundError) -> str | None:
    """Returns a line that names the missing extra, or None if no extra has the module."""
    package = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if package in modules:
            command = install_command(extra)
            return f"the package {package} is missing; install the extra {extra}: {command}"
    return None
