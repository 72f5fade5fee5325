"""Where bytes go: files that are replaced atomically, streams, and objects in S3, Google Cloud Storage and Azure.

`open_target` opens any of them for writing. All calls block: on an event loop they belong into a thread.
"""

from shoal.storage.objects import ObjectForbidden, is_object_url
from shoal.storage.stored import StoredBytes, delete, read, stat
from shoal.storage.targets import STDOUT, Target, check_writable, name_problem, open_target, write_errors_explained

__all__ = [
    "STDOUT",
    "ObjectForbidden",
    "StoredBytes",
    "Target",
    "check_writable",
    "delete",
    "is_object_url",
    "name_problem",
    "open_target",
    "read",
    "stat",
    "write_errors_explained",
]
