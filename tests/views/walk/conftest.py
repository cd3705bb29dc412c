"""The page's modules, run by node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from browsed import lacking

from heedful.views import walk

PAGE = Path(walk.__file__).parent / "page"
WIRE = PAGE.parents[1] / "explorer" / "page" / "wire.js"


@pytest.fixture
def computed(tmp_path):
    """What a line of JavaScript returns, of the names of some modules and of what is `asked`."""
    node = shutil.which("node") or lacking("no node is installed: apt-get install nodejs")

    def call(modules, line, given=None, data=b""):
        asked, read = tmp_path / "asked.json", tmp_path / "data"
        asked.write_text(json.dumps(given), "utf-8")
        read.write_bytes(data)
        imports = "".join(
            f"import * as {module} from {json.dumps((PAGE / f'{module}.js').as_uri())};\n"
            for module in modules
        )
        script = f"""
            import {{ readFileSync }} from "node:fs";
            import {{ unpacked }} from {json.dumps(WIRE.as_uri())};
            {imports}
            const asked = JSON.parse(readFileSync({json.dumps(str(asked))}, "utf-8"));
            const bytes = new Uint8Array(readFileSync({json.dumps(str(read))}));
            const data = () => unpacked(bytes.buffer);
            const told = (_, value) => (Number.isFinite(value) || typeof value !== "number"
              ? value : String(value));
            console.log(JSON.stringify({line}, told));
        """
        run = [node, "--input-type=module", "--eval", script]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call
