"""Run modules of the pages with node, without a browser."""

import json
import shutil
import subprocess

from page_reader import lacking


def returned(folder, modules, line, inputs=None, data=b""):
    """Evaluate a line of JavaScript and return its value.

    The line can use some modules by their names, the value `inputs`, and the buffer `bytes`, which
    are written to files in a folder. Infinities and NaN are returned as text.
    """
    node = shutil.which("node") or lacking("no node is installed: apt-get install nodejs")
    question, read = folder / "inputs.json", folder / "data"
    question.write_text(json.dumps(inputs), "utf-8")
    read.write_bytes(data)
    imports = "".join(
        f"import * as {name} from {json.dumps(path.as_uri())};\n" for name, path in modules.items()
    )
    script = f"""
        import {{ readFileSync }} from "node:fs";
        {imports}
        const inputs = JSON.parse(readFileSync({json.dumps(str(question))}, "utf-8"));
        const bytes = new Uint8Array(readFileSync({json.dumps(str(read))})).buffer;
        const replacer = (_, value) => (Number.isFinite(value) || typeof value !== "number"
          ? value : String(value));
        console.log(JSON.stringify({line}, replacer));
    """
    run = [node, "--input-type=module", "--eval", script]
    process = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
