"""The pages' modules, run by node: what they compute, with no browser."""

import json
import shutil
import subprocess

from browsed import lacking


def returned(folder, modules, line, asked=None, data=b""):
    """What a line of JavaScript returns.

    It knows some modules by their names, what is `asked`, and the buffer `bytes`; these are written
    into a folder for it. Numbers that JSON has no word for come as text.
    """
    node = shutil.which("node") or lacking("no node is installed: apt-get install nodejs")
    question, read = folder / "asked.json", folder / "data"
    question.write_text(json.dumps(asked), "utf-8")
    read.write_bytes(data)
    imports = "".join(
        f"import * as {name} from {json.dumps(path.as_uri())};\n" for name, path in modules.items()
    )
    script = f"""
        import {{ readFileSync }} from "node:fs";
        {imports}
        const asked = JSON.parse(readFileSync({json.dumps(str(question))}, "utf-8"));
        const bytes = new Uint8Array(readFileSync({json.dumps(str(read))})).buffer;
        const told = (_, value) => (Number.isFinite(value) || typeof value !== "number"
          ? value : String(value));
        console.log(JSON.stringify({line}, told));
    """
    run = [node, "--input-type=module", "--eval", script]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
