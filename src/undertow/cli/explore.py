"""`undertow explore`: instruments with sliders in the browser."""

import dataclasses
import threading
import webbrowser
from typing import Annotated

import tyro

from undertow.cli._status import SUCCESS, complain

__all__ = ["Explore", "explore"]


@dataclasses.dataclass(frozen=True)
class Explore:
    """Open instruments with sliders in the browser: theory beside simulation, live, and one for your own problem.

    The page is served to this machine only, until Ctrl-C. The first start compiles the programs of the instruments;
    later starts read them from a cache.
    """

    instrument: str = "label-noise"
    """The instrument that the page shows first."""
    file: Annotated[str | None, tyro.conf.arg(metavar="FILE.py:OBJECT")] = None
    """FILE.py:OBJECT with a problem or a noise of your own, as for `undertow analyze`; the page then opens with it."""
    params: str = "params"
    """The variable of the file with the params, where OBJECT does not contain them."""
    port: int = 8765
    """The port of the page; 0 is any free port."""
    browser: bool = True
    """Open the page in the browser."""


def explore(command: Explore) -> int:
    """Serve the page until Ctrl-C."""
    from undertow.execution.registry import UserFileError
    from undertow.execution.settings import configure

    if not 0 <= command.port < 2**16:
        return complain(f"--port {command.port}: give a number from 0 to 65535.")
    configure()
    from undertow.explore.instrument import SettingError
    from undertow.explore.instruments import instruments
    from undertow.explore.server import Explorer, PortInUseError, make_server

    try:
        several = instruments(command.file, command.params)
    except UserFileError as error:
        return complain(str(error))
    first = "own-problem" if command.file else command.instrument
    if first not in several:
        return complain(f"--instrument {first}: the instruments are {', '.join(several)}.")
    explorer = Explorer(several)
    try:
        server = make_server(explorer, command.port)
    except PortInUseError as error:
        return complain(str(error))
    print("Compiling the first instrument ...", flush=True)
    try:
        explorer.picture(several[first], several[first].defaults())
    except SettingError as error:  # another value of a slider may have a picture
        print(error)
    except (ValueError, TypeError) as error:
        return complain(str(error))
    address = f"http://127.0.0.1:{server.server_address[1]}/?instrument={first}"
    threading.Thread(target=explorer.compile, args=(several,), daemon=True).start()
    print(f"{address}\nCtrl-C ends the server.", flush=True)
    if command.browser:
        webbrowser.open(address)
    with server:
        server.serve_forever()
    return SUCCESS
