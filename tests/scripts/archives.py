"""Archives of WMT with the names and formats of the real ones and a few sentences each."""

import gzip
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

# By the beginning of the name; the first that fits.
COUNTS = {
    "newstest2013": 6,
    "europarl": 40,
    "commoncrawl": 30,
    "news": 20,
    "rapid": 10,
    "undoc": 15,
    "giga": 25,
}
TEST_SENTENCES = 5


def sentences(corpus: str, language: str, count: int) -> list[str]:
    # Line separators other than the line feed are part of a sentence.
    return [f"{corpus} {language} {number} – &quot;x&quot; \u2028 y" for number in range(count)]


def pair(template: str, source: str) -> dict[str, bytes]:
    """Returns the two files of plain text whose names the template gives, by name."""
    corpus = Path(template).name.partition(".")[0].partition("-")[0]
    count = next(count for name, count in COUNTS.items() if corpus.startswith(name))
    return {
        template.format(language): "".join(
            f"{line}\n" for line in sentences(corpus, language, count)
        ).encode()
        for language in (source, "en")
    }


def sgm(year: int, source: str) -> dict[str, bytes]:
    """Returns a test set in SGML, which has tags between the sentences."""
    texts = {}
    for kind, language in (("src", source), ("ref", "en")):
        segments = "".join(
            f'<seg id="{number}">{line}</seg>\n'
            for number, line in enumerate(sentences(f"newstest{year}", language, TEST_SENTENCES), 1)
        )
        opening = f'<{kind}set setid="newstest{year}" srclang="any">\n<doc docid="a">\n<p>\n'
        text = f"{opening}{segments}</p>\n</doc>\n</{kind}set>\n"
        texts[f"dev/newstest{year}-{source}en-{kind}.{language}.sgm"] = text.encode()
    return texts


def write_tar(path: Path, contents: dict[str, bytes], mode: str = "w:gz") -> None:
    with tarfile.open(path, mode) as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_archives(folder: Path) -> Path:
    """Writes the archives of wmt14 de-en and fr-en, wmt17 de-en and wmt_t2t."""

    def pairs(template: str, sources: Iterable[str] = ("de", "fr")) -> dict[str, bytes]:
        return {
            name: content
            for source in sources
            for name, content in pair(template.replace("{src}", source), source).items()
        }

    write_tar(
        folder / "training-parallel-europarl-v7.tgz", pairs("training/europarl-v7.{src}-en.{}")
    )
    write_tar(folder / "training-parallel-commoncrawl.tgz", pairs("commoncrawl.{src}-en.{}"))
    write_tar(
        folder / "training-parallel-nc-v9.tgz", pairs("training/news-commentary-v9.{src}-en.{}")
    )
    write_tar(
        folder / "training-parallel-nc-v12.tgz", pairs("training/news-commentary-v12.{src}-en.{}")
    )
    write_tar(
        folder / "training-parallel-nc-v13.tgz",
        pairs("training-parallel-nc-v13/news-commentary-v13.{src}-en.{}"),
    )
    write_tar(folder / "rapid2016.tgz", pairs("rapid2016.de-en.{}", ["de"]))
    write_tar(folder / "training-parallel-un.tgz", pairs("un/undoc.2000.fr-en.{}", ["fr"]))
    giga = pairs("giga-fren.release2.fixed.{}", ["fr"])
    packed = {f"{name}.gz": gzip.compress(content) for name, content in giga.items()}
    write_tar(folder / "training-giga-fren.tar", packed, "w")
    development = pairs("dev/newstest2013.{}")
    for source in ("de", "fr"):
        for year in (2014, 2016, 2017):
            development |= sgm(year, source)
    write_tar(folder / "dev.tgz", development)
    return folder
