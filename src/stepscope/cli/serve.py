"""The command that serves the local web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.errors import BadInput

_MIB = 1 << 20


def serve(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Captures or runs to open at once, read where they are.", metavar="[TRACE]..."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)
    ] = 8765,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where uploads are kept.")] = None,
    max_upload: Annotated[int, typer.Option("--max-upload", help="Largest upload in MiB.", min=1)] = 4096,
) -> None:
    """Serve a local web page: drop traces, read reports, compare."""
    try:
        import uvicorn  # noqa: PLC0415  # an extra

        from stepscope.web.app import make_app  # noqa: PLC0415  # an extra
        from stepscope.web.library import Library  # noqa: PLC0415  # beside it
    except ImportError as error:
        raise BadInput(f"serve needs the web extra ({error.name} is missing): pip install 'stepscope[web]'.") from error
    kept = folder or Path(typer.get_app_dir("stepscope")) / "uploads"
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{kept}: cannot be made ({error.strerror}). Choose another --folder.") from error
    library = Library(folder=kept, max_bytes=max_upload * _MIB)
    library.open_paths(runs or ())
    config = uvicorn.Config(make_app(library), host="127.0.0.1", port=port, log_level="warning")
    typer.echo(f"stepscope: http://127.0.0.1:{port}/  (uploads in {kept}; stop with Ctrl-C)", err=True)
    uvicorn.Server(config).run()
