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
    table = {
        name: [o for a in p._actions if a.help != argparse.SUPPRESS for o in a.option_strings]
        for name, p in args.commands.choices.items()
    }
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](table))
    return 0


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
    COMPREPLY=($(compgen -f -- "$word"))
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
            # of options like -f1, which are neither long ones nor letters, fish says -o
            letter = "-s " if len(option) == 2 else "-o "
            kind = "-l " + option[2:] if option.startswith("--") else letter + option[1:]
            seen = f"'__fish_seen_subcommand_from {name}'"
            lines.append(f"complete -c nnl -n {seen} {kind}")
            if name == "convert":
                lines.append(f"complete -c nnl-convert {kind}")
    return "\n".join(lines)
