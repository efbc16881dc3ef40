"""``npulab completion``: a script with which a shell completes commands, options, choices."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npulab.cli.output import Done, show

Words = Mapping[str, tuple[list[str], dict[str, list[str]]]]
BASH = Path(__file__).with_name("completion.bash").read_text(encoding="utf-8")
ZSH = "autoload -U +X compinit bashcompinit\ncompinit && bashcompinit\n"
HOW = {
    "bash": 'eval "$(npulab completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(npulab completion zsh)" in ~/.zshrc',
    "fish": "npulab completion fish | source in ~/.config/fish/config.fish",
}
HELP = "; ".join(HOW.values())


def _completion(options: argparse.Namespace) -> None:
    words = command_words()
    text = bash(words)
    if options.shell == "fish":
        text = fish(words)
    elif options.shell == "zsh":
        text = ZSH + text
    text = text.rstrip("\n")
    show(options, Done({"shell": options.shell, "script": text}, text))


def command_words() -> Words:
    """Return, by command, a pair: the list of words that may follow the command (its options, the
    choices of its arguments), and the choices of each option that has choices, by option.
    """
    from npulab.cli.options import declare
    from npulab.cli.shell import COMMANDS as FAMILIES

    out = {}
    for name in FAMILIES:
        parser = argparse.ArgumentParser(add_help=False)
        parser.add_argument("--json", action="store_true")
        declare(parser.add_argument, name)
        out[name] = _words(parser)
    return out


def _words(parser: argparse.ArgumentParser) -> tuple[list[str], dict[str, list[str]]]:
    plain: list[str] = []
    choices: dict[str, list[str]] = {}
    for action in parser._actions:
        values = [*map(str, action.choices or ())]
        plain += action.option_strings or values
        choices |= {option: values for option in action.option_strings if values}
    return plain, choices


def bash(words: Words) -> str:
    """Return the script for bash; it completes file names where no word fits."""
    options = [f'      {name}) words="{" ".join(plain)}" ;;' for name, (plain, _) in words.items()]
    choices = []
    for name, (_, by_option) in words.items():
        for option, values in by_option.items():
            choices.append(f'    "{name} {option}") words="{" ".join(values)}" ;;')
    return BASH.format(
        commands=" ".join(words), options="\n".join(options), choices="\n".join(choices)
    )


def fish(words: Words) -> str:
    """Return the script for fish, a line for each word that can be completed."""
    lines = [f"complete -c npulab -n __fish_use_subcommand -f -a '{' '.join(words)}'"]
    for name, (plain, by_option) in words.items():
        seen = f"complete -c npulab -n '__fish_seen_subcommand_from {name}'"
        for word in plain:
            line = f"{seen} -a '{word}'"
            if word.startswith("--"):
                line = f"{seen} -l {word[2:]}"
                if word in by_option:
                    line += f" -x -a '{' '.join(by_option[word])}'"
            lines.append(line)
    return "\n".join(lines) + "\n"


COMMANDS: dict[str, Any] = {"completion": _completion}
