"""Asks the server at an address for a copy that runs a program with its arguments, and ends as that ends: see the package.

It imports next to nothing, since it is started for every command.
"""

import _socket
import os
import sys
from _signal import SIG_DFL, SIGHUP, SIGINT, SIGTERM, signal

HANDED_ON = (SIGINT, SIGTERM, SIGHUP)


def main(address: str, *args: str) -> None:
    copy, early = [], []

    def hand_on(number: int, _: object) -> None:
        if copy:
            os.kill(copy[0], number)
        else:
            early.append(number)

    for number in HANDED_ON:
        signal(number, hand_on)
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.connect(b"\0" + address.encode())
    environ = [name + b"=" + value for name, value in os.environb.items()]
    folder = os.getcwdb()  # noqa: PTH109
    words = [folder, str(len(args)).encode(), *map(os.fsencode, args), *environ]
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    server.sendmsg([b"\0".join(words)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    copy.append(int(server.recv(64)))
    for number in early:
        os.kill(copy[0], number)
    code = int(server.recv(64))
    if code < 0:
        if -code in HANDED_ON:
            signal(-code, SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main(*sys.argv[1:])
