"""Which folders are not on this machine.

One idea: SQLite's locks and shared memory need a disk of the machine itself; over a network two programs can each believe that
they are alone, and the file is lost. So a path on a network filesystem is refused before anything is opened there.
"""

from __future__ import annotations

from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_KINDS = """
    9p afs beegfs ceph cifs coda davfs gfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs pvfs2 smb3 smbfs
    fuse.blobfuse2 fuse.ceph fuse.curlftpfs fuse.davfs2 fuse.gcsfuse fuse.glusterfs fuse.goofys fuse.juicefs fuse.rclone
    fuse.s3fs fuse.seaweedfs fuse.smbnetfs fuse.sshfs
"""
_OVER_A_NETWORK = frozenset(_KINDS.split())
_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


def network_filesystem(path: Path, mounts: str | None = None) -> str:
    """The kind of network filesystem that an absolute path is on; empty where it is none, or where nobody can tell.

    `mounts` is the text of Linux's `/proc/self/mountinfo`; other systems do not have it.
    """
    if mounts is None:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape") if _MOUNTS.exists() else ""
    kind, longest = "", 0
    for place, of_kind in map(_place_and_kind, mounts.splitlines()):
        # A later mount hides an earlier one on the same place.
        if path.is_relative_to(place) and len(place.parts) >= longest:
            kind, longest = of_kind, len(place.parts)
    return kind if kind in _OVER_A_NETWORK else ""


def _place_and_kind(line: str) -> tuple[Path, str]:
    mount, _, filesystem = line.partition(" - ")
    place = mount.split(" ")[4]
    for code, character in _ESCAPES:
        place = place.replace(code, character)
    return Path(place), filesystem.split(" ")[0]
