"""Files that a config names by URL: fetched once, checked, and kept in the cache."""

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from absl import logging

from transformer import cache, files
from transformer import progress_bar as progress
from transformer.errors import UserError

_BLOCK = 1 << 16  # bytes
_TIMEOUT = 30  # seconds without any byte before a server counts as unreachable


def fetch(data) -> Path:
    """Makes sure that all `data.downloads` are in the cache, and returns their folder.

    A file that is there has been checked before it got its name, so only what is missing is fetched.

    Raises:
      UserError: there is nothing to download from, a server cannot be reached, or a file is not the expected one.
    """
    if not data.downloads:
        raise UserError(f"data.path is empty: data.source={data.source} needs the folder with the STEM.LANG[.gz] files")
    folder = cache.folder(data) / "downloads" / f"{Path(data.name).name}-{_key(data.downloads)}"
    folder.mkdir(parents=True, exist_ok=True)
    with cache.turn(folder / ".lock", data.wait_seconds):
        for name, url, sha256 in data.downloads:
            if Path(name).name != name:
                raise UserError(f"data.downloads: file name {name} must be a name alone, without a folder")
            if not (folder / name).exists():
                _fetch_one(folder / name, url, sha256, data.downloads)
    return folder


def _key(downloads) -> str:
    return hashlib.sha256("\n".join(sha256 for _, _, sha256 in downloads).encode()).hexdigest()[:8]


def _fetch_one(path: Path, url: str, sha256: str, downloads) -> None:
    logging.info("Downloading %s", url)
    unfinished = path.with_name(f".{path.name}.unfinished")
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, unfinished.open("wb") as file:
            size = int(response.headers["Content-Length"] or 0)
            with progress.bar(f"{path.name} (bytes)", size) as advance:
                while block := response.read(_BLOCK):
                    file.write(block)
                    digest.update(block)
                    advance(len(block))
    except (OSError, ValueError, http.client.HTTPException) as error:  # URLError is an OSError, as time-outs are
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in files.FULL_DISK:
            raise  # no other place to download from would help
        reason = " ".join(str(error.reason if isinstance(error, urllib.error.URLError) else error).split())
        names = ", ".join(name.removesuffix(".gz") for name, _, _ in downloads)
        raise UserError(
            f"{url}: cannot be downloaded ({reason}); put {names} (each plain, or gzipped with .gz added) in a folder "
            f"and add --config.data.path=FOLDER"
        ) from error
    if digest.hexdigest() != sha256:
        unfinished.unlink()
        raise UserError(
            f"{url}: sha256 is {digest.hexdigest()}, data.downloads says {sha256}; the file has changed or was cut "
            f"short: try again, or get it elsewhere and add --config.data.path=FOLDER"
        )
    unfinished.rename(path)
