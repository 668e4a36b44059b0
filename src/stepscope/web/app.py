"""The web application: a JSON API with the documents of the command line, and pages that show them.

Made for one user on 127.0.0.1. Requests from other sites are refused: the host name must be local, and whatever
changes something must carry the header X-Stepscope, which no foreign page can send.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from stepscope.answers.compare import compare
from stepscope.errors import BadInput
from stepscope.report.comparison import to_comparison_document
from stepscope.report.comparison_text import to_comparison_text
from stepscope.report.html import render_html
from stepscope.report.translate import make_translator
from stepscope.web.library import Capture, Library, TooLarge, UnknownCapture
from stepscope.web.pages import index_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LOCAL_HOSTS = ["127.0.0.1", "localhost"]


class Refused(BadInput):
    """A request that a foreign page could have sent."""


def make_app(library: Library) -> FastAPI:
    """The application over a library."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        library.close()

    app = FastAPI(title="Stepscope", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url="/api/openapi.json")
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_HOSTS)
    app.state.library = library
    app.exception_handler(BadInput)(_on_bad_input)
    _add_uploads(app)
    _add_documents(app)
    _add_pages(app)
    return app


def _on_bad_input(_: Request, error: Exception) -> JSONResponse:
    status = 404 if isinstance(error, UnknownCapture) else 413 if isinstance(error, TooLarge) else 400
    if isinstance(error, Refused):
        status = 403
    return JSONResponse({"error": str(error)}, status_code=status)


def _library(request: Request) -> Library:
    library: Library = request.app.state.library
    return library


def _own_page(request: Request) -> None:
    if "x-stepscope" not in request.headers:
        raise Refused("requests that change something need the header X-Stepscope: 1.")


def _capture(capture_id: str, library: Annotated[Library, Depends(_library)]) -> Capture:
    return library.find(capture_id)


def _document(capture: Annotated[Capture, Depends(_capture)]) -> dict[str, Any]:
    if capture.document is None:
        raise BadInput(capture.error or f"the capture is not read yet: it is {capture.state}. Ask again.")
    return capture.document


_AnyLibrary = Annotated[Library, Depends(_library)]
_AnyCapture = Annotated[Capture, Depends(_capture)]
_AnyDocument = Annotated[dict[str, Any], Depends(_document)]
_Changes = [Depends(_own_page)]


def _add_uploads(app: FastAPI) -> None:
    @app.post("/api/captures", status_code=201, dependencies=_Changes)
    def begin_upload(library: _AnyLibrary, name: str = "upload") -> dict[str, Any]:
        return library.begin_upload(name).summary()

    @app.put("/api/captures/{capture_id}/files/{file_name}", dependencies=_Changes)
    async def put_file(request: Request, library: _AnyLibrary, capture: _AnyCapture, file_name: str) -> dict[str, Any]:
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) + capture.bytes_total > library.max_bytes:
            library.count(capture, int(declared))
        with library.open_file(capture, file_name) as out:
            async for chunk in request.stream():
                library.count(capture, len(chunk))
                out.write(chunk)
        return capture.summary()

    @app.post("/api/captures/{capture_id}/explain", status_code=202, dependencies=_Changes)
    def finish_upload(library: _AnyLibrary, capture: _AnyCapture) -> dict[str, Any]:
        library.finish_upload(capture)
        return capture.summary()

    @app.delete("/api/captures/{capture_id}", dependencies=_Changes)
    def remove_capture(library: _AnyLibrary, capture: _AnyCapture) -> dict[str, Any]:
        library.remove(capture)
        return {"removed": capture.id}


def _add_documents(app: FastAPI) -> None:
    @app.get("/api/captures")
    def list_captures(library: _AnyLibrary) -> list[dict[str, Any]]:
        return [capture.summary() for capture in list(library.captures.values())]

    @app.get("/api/captures/{capture_id}")
    def show_capture(capture: _AnyCapture) -> dict[str, Any]:
        return capture.summary()

    @app.get("/api/captures/{capture_id}/document")
    def show_document(document: _AnyDocument) -> dict[str, Any]:
        return document

    @app.get("/api/compare")
    def show_comparison(library: _AnyLibrary, a: str, b: str) -> dict[str, Any]:
        return _comparison(library, a, b)

    @app.get("/api/compare/text", response_class=PlainTextResponse)
    def show_comparison_text(library: _AnyLibrary, a: str, b: str, lang: str = "en") -> str:
        document = _comparison(library, a, b)
        return to_comparison_text(document, make_translator(lang, document))


def _comparison(library: Library, a: str, b: str) -> dict[str, Any]:
    first, second = library.find(a), library.find(b)
    for capture in (first, second):
        _document(capture)  # an error if it is not read
    return to_comparison_document(compare(library.account(first), library.account(second)))


def _add_pages(app: FastAPI) -> None:
    @app.get("/", response_class=HTMLResponse)
    def index(request: Request) -> Response:
        del request
        page, policy = index_page()
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    @app.get("/captures/{capture_id}", response_class=HTMLResponse)
    def report(document: _AnyDocument, lang: str = "en") -> Response:
        # the page carries its own content policy; what only a header can forbid is being framed
        headers = {"Content-Security-Policy": "frame-ancestors 'none'", "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(render_html(document, make_translator(lang, document)), headers=headers)
