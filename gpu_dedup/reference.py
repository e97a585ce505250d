"""docs/options.md, made from the tables of the command line, so that page and program cannot differ.

python -m gpu_dedup.reference > gpu_dedup/docs/options.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields

import click

from gpu_dedup import cli
from gpu_dedup.recipe import Recipe

HEAD = """# Every command and option

<!-- made by `python -m gpu_dedup.reference > gpu_dedup/docs/options.md`; a test holds it against the program -->

Options of `run` under the headings Duplicates, Which copy stays, Search, Filter and Input are fields of
`gpu_dedup.Recipe`: they decide which rows go, and they are in the recipe's fingerprint. All others are fields of
`gpu_dedup.Run`, or switches of the command: no bit of the result depends on them (a saved filter or table of
frequencies brings earlier rows along, and counts as input). From Python a field has the name in
the third column; shares such as 0.8 are whole millionths there (`threshold_ppm=800_000`).

An option that would change nothing beside the others given is refused, not ignored.
"""


def render() -> str:
    """The page."""
    return "\n".join([HEAD, *_commands()]).rstrip() + "\n"


def _commands() -> Iterator[str]:
    root = click.Context(cli.cli, info_name=cli.PROGRAM, **cli.cli.context_settings)
    for name in _in_order():
        command = cli.cli.commands[name]
        ctx = click.Context(command, info_name=name, parent=root)
        yield f"## {cli.PROGRAM} {name}\n"
        usage = " ".join(command.collect_usage_pieces(ctx))
        yield f"```text\n{cli.PROGRAM} {name} {usage}\n```\n"
        yield _prose(command.help or "")
        yield from _options(command, ctx)


def _in_order() -> list[str]:
    first = ["run", "explain", "show", "report", "apply", "undo", "doctor", "demo"]
    return [name for name in first if name in cli.cli.commands] + sorted(set(cli.cli.commands) - set(first))


def _prose(text: str) -> str:
    """Click's help text as Markdown: what stands behind a \\b is an example."""
    parts = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in block.splitlines()]
        if lines and lines[0] == "\b":
            parts.append("\n".join(["```text", *lines[1:], "```"]))
        else:
            parts.append(" ".join(lines))
    return "\n\n".join(parts) + "\n"


def _options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Tables of options, under the headings of the help."""
    sections: dict[str, list[tuple[str, str, str]]] = {}
    tables = {
        option.name: (section, option)
        for table in (cli.RECIPE_OPTIONS, cli.RUN_OPTIONS)
        for section, options in table.items()
        for option in options
    }
    switches = {flag: field for field, flag in cli.SWITCHES.items()}
    for parameter in command.get_params(ctx):
        if not isinstance(parameter, click.Option):
            continue
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        flags, words = record
        section, option = tables.get(parameter.name or "", ("Options", None))
        field = option.field if option is not None else switches.get(parameter.opts[-1], "")
        if field == "progress":
            field = "progress=False"
        methods = sorted(method for method, without in cli.MEANINGLESS.items() if option and option.field in without)
        if methods:
            words += f" Not with `--method {'`, `'.join(methods)}`."
        sections.setdefault(section, []).append((flags, " ".join(words.split()), field))
    several = len(sections) > 1
    for section in [name for name in ("Options", *cli.RECIPE_OPTIONS, *cli.RUN_OPTIONS) if name in sections]:
        if several:
            yield f"### {command.name}: {section}\n"
        yield "| option | meaning | field |\n| --- | --- | --- |"
        for flags, words, field in sections[section]:
            yield f"| `{_cell(flags)}` | {_cell(words)} | {f'`{_owner(field)}{field}`' if field else ''} |"
        yield ""


def _owner(field: str) -> str:
    return "Recipe." if field in {entry.name for entry in fields(Recipe)} else "Run."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
