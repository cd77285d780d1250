# SPDX-License-Identifier: Apache-2.0
"""nnl trials, search and plugin: what a console keeps in its folder, from the command line."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnl.cli.errors import UsageError, check_installed
from nnl.cli.training.remote import ON, check_on


def add_commands(commands: Any) -> None:
    """Register the commands."""
    p = commands.add_parser("trials", description="Trials of the console in DIR.")
    inner = p.add_subparsers(dest="action", metavar="ACTION", required=True)
    q = _action(inner, "list", _list, "all trials, newest first")
    q.add_argument("--project", metavar="PROJECT", help="only of this one: its name or id")
    q.add_argument("--status", metavar="STATUS", help="only with this status")
    q = _action(inner, "show", _show, "one trial with its configuration")
    q.add_argument("trial", metavar="TRIAL")
    q = _action(inner, "compare", _compare, "what differs between trials")
    q.add_argument("trials", nargs="+", metavar="TRIAL")
    q = _action(inner, "revert", _revert, "make a trial's network the present one again")
    q.add_argument("trial", metavar="TRIAL")
    q = _action(inner, "export", _export, "a trial's network with its weights, or all as a table")
    q.add_argument("trial", metavar="TRIAL", help="all: a table of all trials")
    q.add_argument("-o", "--output", required=True, metavar="FILE", help=".nnp .onnx .csv ...")
    q = _action(inner, "lock", _lock, "keep a trial from being deleted")
    q.add_argument("trial", metavar="TRIAL")
    q.add_argument("--off", action="store_true", help="unlock it")

    p = commands.add_parser("search", description="Structure searches of the console in DIR.")
    inner = p.add_subparsers(dest="action", metavar="ACTION", required=True)
    q = _action(inner, "run", _search, "search, and print each candidate")
    q.add_argument("project", metavar="PROJECT", help="its name or id")
    q.add_argument("--attempts", type=int, default=50, metavar="N", help="(default: 50)")
    q.add_argument("--hours", type=float, default=1.0, metavar="H", help="(default: 1)")
    q.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at once")
    q.add_argument("--method", choices=("nsga2", "tpe", "random"), default="nsga2")
    q.add_argument("--seed", type=int, default=0, metavar="N")
    _add_on(q)
    q = _action(inner, "resume", _resume, "go on with a search that was stopped")
    q.add_argument("search", metavar="SEARCH", nargs="?", help="(default: the newest one)")
    _add_on(q)
    q = _action(inner, "front", _front, "candidates that no other one beats")
    q.add_argument("search", metavar="SEARCH", nargs="?", help="(default: the newest one)")

    p = commands.add_parser("plugin", description="Plugins of the console in DIR.")
    inner = p.add_subparsers(dest="action", metavar="ACTION", required=True)
    _action(inner, "list", _plugins, "what plugins there are")
    q = _action(inner, "run", _plugin, "run a plugin on a trial")
    q.add_argument("plugin", metavar="PLUGIN")
    q.add_argument("--trial", metavar="TRIAL")
    q.add_argument("--row", type=int, metavar="N", help="of the trial's data set")
    q.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a field of its form"
    )
    q.add_argument("--trust", action="store_true", help="allow the file as it is now")


def _action(parsers: Any, name: str, run: Callable[..., int], what: str) -> Any:
    p = parsers.add_parser(name, help=what, description=what.capitalize() + ".")
    p.add_argument("-d", "--dir", default=".", metavar="DIR", help="of the console (default: .)")
    p.add_argument("--json", action="store_true", help="as JSON")
    p.set_defaults(run=lambda args: _in_console(args, run))
    return p


def _add_on(p: Any) -> None:
    p.add_argument("--on", metavar="WORKERS", help=f"train there: {ON} (here)")


def _in_console(args: argparse.Namespace, run: Callable[..., int]) -> int:
    """Run an action with the console of DIR."""
    from nnl.console.errors import Refused
    from nnl.console.server.state import Console

    folder = Path(args.dir)
    if not (folder / ".nnl" / "console.db").is_file():
        raise FileNotFoundError(f"{folder} is no folder of a console; try: nnl console {folder}")
    console = Console(folder)
    try:
        return run(args, console)
    except Refused as error:
        hint = error.hint
        for what in ("trial", "plugin"):
            if error.message.startswith(f"there is no {what} "):
                command = {"trial": "trials", "plugin": "plugin"}[what]
                hint = f"nnl {command} list -d {args.dir}"
        kind = FileNotFoundError if error.code == "not_found" else ValueError
        raise kind(f"{error.message}{f'; try: {hint}' if hint else ''}") from None
    finally:
        console.close()


def _project(console: Any, given: str) -> str:
    """The id of a project, of which the id or the name is given."""
    found = [p for p in console.store.projects() if given in (p["id"], p["name"])]
    if len(found) == 1:
        return str(found[0]["id"])
    if found:
        ids = ", ".join(p["id"] for p in found)
        raise ValueError(f"{len(found)} projects are called {given!r}; try: one of the ids {ids}")
    names = ", ".join(dict.fromkeys(p["name"] for p in console.store.projects())) or "none"
    raise FileNotFoundError(f"there is no project {given!r}, there are: {names}")


def _print(args: argparse.Namespace, data: Any, rows: list[tuple[Any, ...]]) -> int:
    if args.json:
        print(json.dumps(data, indent=1))
        return 0
    from nnl.cli.networks.view import table

    text = [tuple("" if c is None else str(c) for c in row) for row in rows]
    print("\n".join(table(text, len(text[0]))) if text else "")
    return 0


# ---- trials ----


def _list(args: argparse.Namespace, console: Any) -> int:
    from nnl.console.trials.comparing import listed
    from nnl.console.trials.trials import ENDED, LIVE

    if args.status not in (None, *LIVE, *ENDED):
        wanted = ", ".join((*LIVE, *ENDED))
        raise UsageError(f"--status is {args.status!r}, wanted one of {wanted}")
    project = None if args.project is None else _project(console, args.project)
    found = listed(console.trials, project, args.status, limit=100_000)["trials"]
    rows: list[tuple[Any, ...]] = [("trial", "name", "status", "epoch", "best", "multiply-adds")]
    for t in found:
        best = t["best"] and f"{t['best']['name']} {t['best']['value']:.6g}"
        epochs = f"{t['epoch']}/{t['max_epoch']}"
        rows.append((t["id"], t["name"], t["status"], epochs, best, f"{t['multiply_adds']:,}"))
    return _print(args, found, rows)


def _show(args: argparse.Namespace, console: Any) -> int:
    found = console.trials.one(args.trial, True)
    return _print(args, found, [(k, v) for k, v in found.items()])


def _compare(args: argparse.Namespace, console: Any) -> int:
    from nnl.console.trials.comparing import compared

    found = compared(console.trials, args.trials)
    rows: list[tuple[Any, ...]] = [("", *args.trials)]
    rows += [(name, *values) for name, values in found["config"].items()]
    for name, values in found["metrics"].items():
        rows += [(f"{kind} {name}", *values[kind]) for kind in ("best", "last")]
    for key, difference in zip(args.trials[1:], found["network"], strict=True):
        for c in difference["nodes"]["changed"]:
            rows.append((f"{key}: {c['name']}", c["properties"] or c["type"]))
        for kind in ("added", "removed"):
            names = [e["node"]["name"] for e in difference["nodes"][kind]]
            rows += [(f"{key}: {kind}", ", ".join(names))] if names else []
    width = max(len(r) for r in rows)
    return _print(args, found, [(*r, *[""] * (width - len(r))) for r in rows])


def _revert(args: argparse.Namespace, console: Any) -> int:
    entry = console.trials.one(args.trial)
    head = console.store.project(entry["project"])["head"]
    document = console.trials.document(args.trial)
    note = f"back to trial {entry['number']}"
    found, _ = console.store.save(entry["project"], head, document, note)
    return _print(args, found, [("version", found["id"])])


def _export(args: argparse.Namespace, console: Any) -> int:
    from nnl.console.documents.code import code
    from nnl.console.documents.training import export
    from nnl.console.trials.comparing import exported
    from nnl.core.parameters.atomic import replacing

    path = Path(args.output)
    kind = path.suffix.lower()
    if args.trial == "all":
        if kind not in (".csv", ".json"):
            raise ValueError(f"{path} is no .csv or .json file")
        with replacing(path) as file:
            file.write_text(exported(console.trials, None, kind[1:]), "utf-8")
    else:
        document = console.trials.document(args.trial)
        if kind == ".py":
            with replacing(path) as file:
                file.write_text(code(document, console.columns(document))[0], "utf-8")
        else:
            weights = console.trials.weights({"trial": args.trial})
            export(document, path, *console.data(document), weights)
    return _print(args, {"file": str(path)}, [(str(path),)])


def _lock(args: argparse.Namespace, console: Any) -> int:
    found = console.trials.change(args.trial, {"locked": not args.off})
    return _print(args, found, [(found["id"], "locked" if found["locked"] else "not locked")])


# ---- searches ----


def _check(args: argparse.Namespace, console: Any) -> None:
    check_installed("optuna")
    if args.on is not None:
        check_on("search", args.on)
        if not console.store.leads():
            raise ValueError(f"search: --on, but another process starts the trials of {args.dir}")


def _search(args: argparse.Namespace, console: Any) -> int:
    _check(args, console)
    names = ("attempts", "hours", "jobs", "method", "seed")
    settings = {name: getattr(args, name) for name in names}
    project = _project(console, args.project)
    return _followed(args, console, console.searches.add(project, None, settings)["id"])


def _resume(args: argparse.Namespace, console: Any) -> int:
    _check(args, console)
    return _followed(args, console, console.searches.resume(_chosen(args, console))["id"])


def _followed(args: argparse.Namespace, console: Any, key: str) -> int:
    """Print what a search finds until it ends, then what is best."""
    if args.on is not None:
        console.trials.command = (sys.executable, "-m", "nnl.cli.training.remote", args.on)
    jobs = console.searches.one(key)["settings"]["jobs"]
    console.trials.children = max(console.trials.children, jobs)
    console.trials.begin()
    console.searches.begin()
    seen: dict[int, str] = {}
    try:
        status = "running"
        while status == "running":
            time.sleep(0.1)
            status = console.searches.one(key)["status"]
            for c in console.searches.candidates(key):
                if c["status"] not in ("running", "rejected") and c["number"] not in seen:
                    seen[c["number"]] = c["status"]
                    if not args.json:
                        print(_line(c), flush=True)
    except KeyboardInterrupt:
        console.searches.cancel(key)
        end = time.monotonic() + 10
        running = "SELECT 1 FROM trial WHERE search = ? AND status = 'running'"
        while console.store.row(running, key) and time.monotonic() < end:
            time.sleep(0.05)  # until their ends are written down
        raise
    if status == "failed":
        raise RuntimeError(console.store.row("SELECT what FROM audit WHERE id = ?", key)["what"])
    args.search = key
    return _front(args, console)


def _line(c: dict[str, Any]) -> str:
    error = "-" if c["error"] is None else f"{c['error']:.6g}"
    edits = "; ".join(e["text"] for e in c["edits"]) or "the network itself"
    return f"{c['number']:4} {c['status']:8} {error:>10} {c['multiply_adds']:>14,}  {edits}"


def _chosen(args: argparse.Namespace, console: Any) -> str:
    """The search of the arguments, or the newest one."""
    if args.search is not None:
        return str(args.search)
    searches = console.searches.all()
    if not searches:
        raise FileNotFoundError(f"there is no search; try: nnl search run PROJECT -d {args.dir}")
    return str(searches[0]["id"])


def _front(args: argparse.Namespace, console: Any) -> int:
    args.search = _chosen(args, console)
    found = console.searches.front(args.search)
    best = {c["number"]: c for c in found["candidates"]}
    rows: list[tuple[Any, ...]] = [("candidate", "trial", "error", "multiply-adds", "edits")]
    for number in found["front"]:
        c = best[number]
        edits = "; ".join(e["text"] for e in c["edits"])
        rows.append((number, c["trial"], f"{c['error']:.6g}", f"{c['multiply_adds']:,}", edits))
    return _print(args, {"search": args.search, **found}, rows)


# ---- plugins ----


def _plugins(args: argparse.Namespace, console: Any) -> int:
    found = console.plugins.all()
    rows = [("plugin", "may run", "what")]
    rows += [(p["id"], "yes" if p["trusted"] else "no", p["doc"] or p["error"]) for p in found]
    return _print(args, found, rows)


def _plugin(args: argparse.Namespace, console: Any) -> int:
    if args.trust:
        entry = console.plugins.one(args.plugin)
        console.plugins.trust(args.plugin, entry["sha256"])
    kinds = {f.name: f.kind for f in console.plugins.form(args.plugin).fields}
    given: dict[str, Any] = {}
    for setting in args.set:
        name, equals, value = setting.partition("=")
        if not equals or name not in kinds:
            raise UsageError(f"--set {setting}: wanted NAME=VALUE, names are {', '.join(kinds)}")
        number = {"int": int, "row": int, "float": float}.get(kinds[name])
        given[name] = (
            number(value) if number else value == "true" if kinds[name] == "bool" else value
        )
    run = console.plugins.run(args.plugin, given, args.trial, args.row)["id"]
    while (found := console.plugins.result(run))["status"] == "running":
        time.sleep(0.1)
    files = [str(console.plugins.artifact(run, a["id"])) for a in found["artifacts"]]
    _print(
        args, {**found, "files": files}, [(line,) for line in [*found["log"].splitlines(), *files]]
    )
    return 0 if found["status"] == "finished" else 1
