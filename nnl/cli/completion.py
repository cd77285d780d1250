# SPDX-License-Identifier: Apache-2.0
"""nnl completion: scripts that complete commands and options in a shell, from the parser itself."""

from __future__ import annotations

import argparse
from typing import Any

SHELLS = ("bash", "zsh", "fish")


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "completion",
        description="bash: source <(nnl completion bash); zsh: the same with zsh; "
        "fish: nnl completion fish | source",
    )
    p.add_argument("shell", choices=SHELLS)
    p.set_defaults(run=run, commands=commands)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    table = {name: _words(p) for name, p in args.commands.choices.items()}
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](table))
    return 0


def _words(p: argparse.ArgumentParser) -> list[str]:
    """The options of a command; of one with actions, as `trials list`, these and all their own."""
    found = []
    for a in p._actions:
        if isinstance(a, argparse._SubParsersAction):
            found += [w for n, sub in a.choices.items() for w in (n, *_words(sub))]
        elif a.help != argparse.SUPPRESS:
            found += a.option_strings
    return list(dict.fromkeys(found))


def _bash(table: dict[str, list[str]]) -> str:
    cases = "\n".join(f'    {n}) words="{" ".join(o)}" ;;' for n, o in table.items())
    return f"""_nnl() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" first=1 command words=""
  while [[ $first -lt $COMP_CWORD && ${{COMP_WORDS[first]}} == -* ]]; do first=$((first + 1)); done
  command="${{COMP_WORDS[first]}}"
  if [[ ${{COMP_WORDS[0]##*/}} == nnl-convert ]]; then
    command=convert
  elif [[ $COMP_CWORD -eq $first ]]; then
    COMPREPLY=($(compgen -W "{" ".join(table)}" -- "$word"))
    return
  fi
  case "$command" in
{cases}
  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  else
    local each actions=""
    for each in $(echo "$words"); do [[ $each == -* ]] || actions+=" $each"; done
    COMPREPLY=($(compgen -W "$actions" -- "$word") $(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _nnl nnl nnl-convert"""


def _zsh(table: dict[str, list[str]]) -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash(table)


def _fish(table: dict[str, list[str]]) -> str:
    none = "__fish_use_subcommand"
    lines = [f"complete -c nnl -n {none} -f -a {name}" for name in table]
    for name, options in table.items():
        for option in options:
            if not option.startswith("-"):
                lines.append(f"complete -c nnl -n '__fish_seen_subcommand_from {name}' -a {option}")
                continue
            # of options like -f1, which are neither long ones nor letters, fish says -o
            letter = "-s " if len(option) == 2 else "-o "
            kind = "-l " + option[2:] if option.startswith("--") else letter + option[1:]
            seen = f"'__fish_seen_subcommand_from {name}'"
            lines.append(f"complete -c nnl -n {seen} {kind}")
            if name == "convert":
                lines.append(f"complete -c nnl-convert {kind}")
    return "\n".join(lines)
