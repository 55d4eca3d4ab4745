"""
The command line: argv -> calls -> text and exit code.

This and the ``cli_*`` modules are the only ones that print or exit. Everything heavy is
imported inside the commands, so that ``topobench --help`` stays quick.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import re
import signal
import sys
from collections.abc import Sequence

import typer

from topobench import cli_demo, cli_fleet, cli_judge, cli_see
from topobench.cli_commands import app
from topobench.cli_data import db_app, import_app, topo_app
from topobench.cli_output import OutputLost, drop_stdout, prepare_streams, store_url
from topobench.cli_price import price_app
from topobench.errors import TopobenchError, UsageError
from topobench.signals import Interrupted

__all__ = ["app", "main", "run"]

app.add_typer(topo_app, name="topo")
app.add_typer(import_app, name="import")
app.add_typer(db_app, name="db")
app.add_typer(price_app, name="price")
cli_judge.add_to(app)
cli_demo.add_to(app)
cli_see.add_to(app)
cli_fleet.add_to(app)

_built = functools.cache(typer.main.get_command)
"""The tree of commands: to build it is most of a call that does little."""


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line and return its exit code; every exception is mapped here.

    Codes: docs/exit-codes.md.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    prepare_streams()
    try:
        _refuse_empty(argv)
        command = _built(app)
        # Not its main(): that turns every KeyboardInterrupt into 130 and says nothing.
        with command.make_context("topobench", list(argv)) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as error:
        return error.exit_code
    except KeyboardInterrupt as error:
        return _interrupted(argv, getattr(error, "number", signal.SIGINT))
    except typer.Abort:
        return _interrupted(argv, signal.SIGINT)
    except SystemExit as error:
        if error.code != signal.SIGTERM:  # what Ray's own handler raises while Ray starts
            raise
        return _interrupted(argv, signal.SIGTERM)
    except BrokenPipeError:  # of the help's reader
        drop_stdout()
        return 1
    except typer.TyperException as error:
        return _complain(argv, UsageError(_sentence(error)))
    except TopobenchError as error:
        return _complain(argv, error)
    except OSError as error:
        return _complain(argv, _known(argv, error))
    except Exception as error:
        return _complain(argv, _edited(argv, error))


def _refuse_empty(argv: Sequence[str]) -> None:
    """
    Refuse an argument without a character: a path of that name would be the folder one is in.

    Raises:
        UsageError: There is one.
    """
    for before, word in itertools.pairwise(["topobench", *argv]):
        if word == "" or _WITHOUT_VALUE.fullmatch(word):
            flag = before.startswith("-") and "=" not in before
            what = word[:-1] if word else before if flag else f"what follows {before!r}"
            raise UsageError(
                f"{what} is empty, as a variable of a shell is that was not set; give a value or "
                "leave it out"
            )


_WITHOUT_VALUE = re.compile(r"--[a-z-]+=")


def _edited(argv: Sequence[str], error: Exception) -> Exception:
    """What a store makes of us that was edited by hand is no bug of ours."""
    with contextlib.suppress(Exception):
        from topobench.db.strays import blame

        found = blame(store_url(_value_of(argv, "--store")))
        if found is not None:
            return found
    return error


def _known(argv: Sequence[str], error: OSError) -> Exception:
    """What the system says of paths, or of the help's reader, is no bug of ours."""
    if "--help" in argv:
        drop_stdout()
        return OutputLost(error)
    if error.errno == errno.ENOENT and error.filename is None and not _in_a_folder():
        return TopobenchError("the folder that this runs in was removed; change to another one")
    if error.errno in _OF_PATHS and error.filename is not None:
        return TopobenchError(f"{os.fsdecode(error.filename)}: {error.strerror}; name another path")
    return error


def _in_a_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _interrupted(argv: Sequence[str], number: int) -> int:
    """Say which signal it was, as text or as a JSON document; returns the exit code."""
    error = Interrupted(number)
    code = 128 + number
    if _wants_json(argv):
        _print_error(argv, error, code)
    else:
        print(f"topobench: {error}", file=sys.stderr)
    return code


def _sentence(error: typer.TyperException) -> str:
    """What the parser found wrong, and where the help is."""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    if text.startswith("Usage:"):
        return text
    text = _OF_VALIDATORS.sub("", " ".join(text.split())).rstrip(".")
    return f"{text} See --help" if text.endswith("?") else f"{text}; see --help"


_OF_VALIDATORS = re.compile(r"Value error, |, unable to parse string as an? \w+")


def _complain(argv: Sequence[str], error: Exception) -> int:
    """Say what went wrong, as text or as a JSON document; returns the exit code."""
    code = _code_of(argv, error)
    if not isinstance(error, TopobenchError):
        import traceback

        traceback.print_exception(error)
        print(
            "topobench: this is a fault in topobench; please report the lines above",
            file=sys.stderr,
        )
    elif isinstance(error, OutputLost) or not _wants_json(argv):
        from topobench.report.safe import clean

        # It may hold words of a file or host that steer a terminal.
        lines = [clean(line, _LONGEST_LINE) for line in str(error).split("\n")]
        whose = "" if lines[0].startswith("Usage:") else "topobench: "
        print(whose + "\n".join(lines), file=sys.stderr)
    if _wants_json(argv):
        _print_error(argv, error, code)
    return code


def _print_error(argv: Sequence[str], error: BaseException, code: int) -> None:
    import json

    from topobench.envelope import error_envelope
    from topobench.sweep import utc_now

    document = error_envelope(_command_of(argv), error, exit_code=code, generated_at=utc_now())
    with contextlib.suppress(OSError):  # standard output may be what went wrong
        print(json.dumps(document), flush=True)


_OF_PATHS = frozenset({errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG})
_LONGEST_LINE = 4000
"""Characters of one line of an error."""
_UNABLE = {"probe": 3, "sweep": 3, "compare": 2}
"""Exit code of what could not be done, where 1 has another meaning."""
_JUDGES = {"check", "accept"}


def _code_of(argv: Sequence[str], error: Exception) -> int:
    """
    Exit code of an error.

    What a sweep could not do at all (no store, no Ray) is 3, since 1 says that cells ran; our
    bugs are 70 there. Where a verdict is asked, everything is 3; where 1 says ``regressed``,
    it is nothing else.
    """
    command = _command_of(argv).partition("-")[0]
    if command in _JUDGES or (command == "sweep" and "--check" in argv):
        return 3
    if isinstance(error, TopobenchError):
        unable = error.exit_code == TopobenchError.exit_code
        return _UNABLE.get(command, error.exit_code) if unable else error.exit_code
    return 70 if command in _UNABLE else 1


def _command_of(argv: Sequence[str]) -> str:
    """``probe``, ``db-info``: the command as its JSON schema names it."""
    words = [a for a in argv if not a.startswith("-")]
    if not words:
        return "topobench"
    if words[0] == "topo":
        known = len(words) > 1 and words[1] in ("diff", "gather")
        return f"topo-{words[1]}" if known else "topology"
    return "-".join(words[:2]) if words[0] in ("db", "price") and len(words) > 1 else words[0]


def _wants_json(argv: Sequence[str]) -> bool:
    return _value_of(argv, "--format") == "json"


def _value_of(argv: Sequence[str], flag: str) -> str | None:
    """What a flag was given last, as ``--flag VALUE`` or ``--flag=VALUE``."""
    given = None
    for word, following in itertools.pairwise([*argv, ""]):
        if word == flag:
            given = following
        elif word.startswith(f"{flag}="):
            given = word.partition("=")[2]
    return given


def run() -> None:
    """Entry point of the console script."""
    raise SystemExit(main())
