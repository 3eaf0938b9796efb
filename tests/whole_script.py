"""The script with all sections: §9 and §10 would make it longer than it may be, so they are a patch.

SCRIPT is a copy of tinyharness.py with the patch applied; the tests of both sections try it. Where
a change of the script parts the two, mend a copy by hand (git apply --3way), and write the patch anew:
git diff --no-index tinyharness.py COPY.
"""

import atexit
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

PATCH = Path(__file__).with_name("sections_9_10.patch")


def write_whole_script(folder) -> Path:
    """A copy of the script, with the patch, in a folder outside of any repository."""
    script = shutil.copy(PATCH.parent.parent / "tinyharness.py", folder)
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(Path(folder).resolve().parent)}
    subprocess.run(["git", "apply", PATCH], cwd=folder, env=alone, check=True)
    return Path(script)


_FOLDER = tempfile.mkdtemp(prefix="tinyharness-")
atexit.register(shutil.rmtree, _FOLDER)
SCRIPT = write_whole_script(_FOLDER)
