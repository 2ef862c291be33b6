"""Files that a configuration names by URL: downloaded once, verified, and kept in the cache."""

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from absl import logging

from transformer import cache, files, progress_bar
from transformer.config_types import Config
from transformer.errors import UserError

_BLOCK = 1 << 16  # bytes
_TIMEOUT = 30  # seconds without any data before a server counts as unreachable


def fetch(data: Config) -> Path:
    """Downloads the missing files of `data.downloads` and returns the folder with all of them.

    A file receives its name only after its checksum has been verified. Raises UserError if there is nothing to
    download, a server cannot be reached, or a file has another checksum.
    """
    if not data.downloads:
        raise UserError(f"data.path is empty: data.source={data.source} needs the folder with the STEM.LANG[.gz] files")
    key = hashlib.sha256("\n".join(sha256 for _, _, sha256 in data.downloads).encode()).hexdigest()[:8]
    folder = cache.folder(data.cache_dir) / "downloads" / f"{Path(data.name).name}-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    with cache.exclusive(folder / ".lock", data.wait_seconds):
        for name, url, sha256 in data.downloads:
            if not (folder / name).exists():
                _download(url, folder / name, sha256, [name.removesuffix(".gz") for name, _, _ in data.downloads])
    return folder


def _download(url: str, path: Path, sha256: str, all_names: list[str]) -> None:
    logging.info("Downloading %s", url)
    unfinished = path.with_name(f".{path.name}.unfinished")
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, unfinished.open("wb") as file:
            size = int(response.headers["Content-Length"] or 0)
            with progress_bar.bar(f"{path.name} (bytes)", size) as advance:
                while block := response.read(_BLOCK):
                    file.write(block)
                    digest.update(block)
                    advance(len(block))
    except (OSError, ValueError, http.client.HTTPException) as error:  # OSError includes URLError and time-outs
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in files.FULL_DISK:
            raise
        reason = " ".join(str(error.reason if isinstance(error, urllib.error.URLError) else error).split())
        raise UserError(
            f"{url}: download failed ({reason}); put {', '.join(all_names)} (plain, or gzipped with .gz added) in a "
            f"folder and add --config.data.path=FOLDER"
        ) from error
    if digest.hexdigest() != sha256:
        unfinished.unlink()
        raise UserError(
            f"{url}: sha256 is {digest.hexdigest()}, data.downloads has {sha256}; the file has changed or is "
            f"incomplete: try again, or get it elsewhere and add --config.data.path=FOLDER"
        )
    unfinished.rename(path)
