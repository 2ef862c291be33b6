"""Corpora of OPUS, WMT and others by mtdata (Gowda et al. 2021).

mtdata runs in a separate Python environment.
"""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from scripts.datasets.folder import LanguagePair, write_record
from transformer.config.keys import nearest
from transformer.support.environment import REPOSITORY
from transformer.support.errors import UserError
from transformer.support.files import new_folder

PYTHON = REPOSITORY / ".venv-mtdata" / "bin" / "python"
NAMES = {"train": "train", "validation": "dev", "test": "test"}  # mtdata's names of the splits
INSTALL = "run make mtdata, or name the Python of an environment that has it with --mtdata=PYTHON"
ADVICE = "its downloads stay in $MTDATA or ~/.mtdata; delete a damaged one there"
SIGNATURE = "mtdata.signature.txt"


def get_recipe(python: str, pair: LanguagePair, recipe: str, output: Path) -> dict[str, Any]:
    """Makes the folder of one of mtdata's recipes, and returns its record.

    Raises UserError if that fails.
    """
    codes = three_letter_codes(python, pair)
    lines = call(python, "mtdata", "list-recipe", "-f", "json").splitlines()
    recipes = {description["id"]: description for description in map(json.loads, lines)}
    if recipe not in recipes:
        raise UserError(
            f"--recipe={recipe}: mtdata has no such recipe{nearest(recipe, recipes)}; "
            f"it has {', '.join(recipes)}"
        )

    # A recipe is for both directions.
    description = recipes[recipe]
    if sorted(description["langs"].split("-")) != sorted(codes):
        raise UserError(
            f"--pair={'-'.join(pair)}: the recipe {recipe} is of {description['langs']}, "
            f"not of {'-'.join(codes)}"
        )
    # Recipes need not have all splits.
    datasets = {split: description[name] for split, name in NAMES.items() if name in description}
    return get_datasets(python, pair, datasets, output, recipe=recipe)


def three_letter_codes(python: str, pair: LanguagePair) -> LanguagePair:
    """Returns the ISO 639-3 codes of the languages, which are in mtdata's file names.

    Raises UserError if a language has no code.
    """
    requirement = f"--pair={'-'.join(pair)} must be codes of ISO 639, such as en-de or eng-deu"
    advice = f"{requirement}; if there is no mtdata, {INSTALL}"
    languages = [code.partition("-")[0] for code in pair]  # mtdata has no codes such as pt-BR
    text = call(python, "mtdata.iso", "-b", *languages, advice=advice)
    first, second = (line.split("\t")[0] for line in text.splitlines())
    return first, second


def get_datasets(
    python: str,
    pair: LanguagePair,
    datasets: Mapping[str, Sequence[str]],
    output: Path,
    **origin: str,
) -> dict[str, Any]:
    """Makes the folder of datasets, named by split, and returns its record with `origin`."""
    codes = three_letter_codes(python, pair)
    # --merge makes one file of the training sets.
    arguments = ["get", "-l", "-".join(codes), "--merge"]
    for split, names in datasets.items():
        arguments += [f"--{NAMES[split]}", *names]
    with new_folder(output) as folder:
        downloads = folder / "mtdata"
        call(python, "mtdata", "-no-pb", *arguments, "-o", str(downloads))
        names = NAMES | name_tests(downloads, codes[0], datasets.get("test", []))
        for language, code in zip(pair, codes, strict=True):
            for stem, name in names.items():
                # The path may be a link to a file in a subfolder.
                path = downloads / f"{name}.{code}"
                if path.exists():
                    path.resolve().replace(folder / f"{stem}.{language}")

        # The signature names the versions of mtdata and the datasets.
        signature = (downloads / SIGNATURE).read_text("utf-8")
        (downloads / SIGNATURE).replace(folder / SIGNATURE)
        shutil.rmtree(downloads)
        facts = {"by": "mtdata", **origin, "datasets": datasets, "signature": signature}
        return write_record(folder, pair, facts)


def name_tests(downloads: Path, code: str, datasets: Sequence[str]) -> dict[str, str]:
    """Maps our names of the test sets, test, test2 and so on, to mtdata's names.

    Ours are in the order of `datasets`. mtdata numbers its links in an order that changes between
    runs. A link leads to a file named after its dataset.
    """
    links = {path.resolve().stem: path.stem for path in sorted(downloads.glob(f"test*.{code}"))}
    # Sets that are not in `datasets` come last.
    ordered = sorted(links, key=[*datasets, *links].index)
    return {
        "test" if number == 1 else f"test{number}": links[name]
        for number, name in enumerate(ordered, 1)
    }


def call(python: str, module: str, *arguments: str, advice: str = ADVICE) -> str:
    """Runs a module of mtdata, and returns its output.

    Raises UserError, with the advice, if it is missing or fails.
    """
    command = [python, "-m", module, *arguments]
    logging.info("Running %s", shlex.join(command))
    # Without these variables, mtdata may import the project's packages, and it concatenates
    # datasets in an order that changes between runs.
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONHASHSEED": "0"}
    try:
        process = subprocess.run(
            command, stdout=subprocess.PIPE, env=environment, check=True, text=True
        )
        return process.stdout
    except OSError as error:
        raise UserError(f"--mtdata={python}: {error.strerror}; {INSTALL}") from error
    except subprocess.CalledProcessError as error:
        raise UserError(f"mtdata failed, as its message above explains; {advice}") from error
