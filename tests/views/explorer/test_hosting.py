"""The server of `heedful look`: its port, its address, and its end."""

import os
import signal
import subprocess
import sys
import urllib.request

SERVE = """
import sys, time
from heedful.views.explorer import answers, server
from heedful.views.explorer.background import Job
from heedful.views.explorer.texts import Texts

class Long(Job):
    def steps(self):
        while True:
            time.sleep(0.05)
            yield

def about(of):
    of.background.show(Long())
    return b""

answers.Answers.about = about
server.serve(Texts({}), lambda address: print(address, flush=True))
"""


def test_it_ends_also_while_it_computes():
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    ) as process:  # fmt: skip
        address = process.stdout.readline().strip()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opener.open(address, timeout=20)
        assert opener.open(address.split("?")[0] + "ask/about", timeout=20).status == 200
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
    assert process.returncode in (-signal.SIGINT, 1, 130)
    assert "Fatal" not in said
    assert "ERROR" not in said
