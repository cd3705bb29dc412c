"""Floor 4: changes what attention heads give while a model runs, and checks what was changed.

`change.py` has the changes, each with its definition; `head_call.py` computes attention of some
heads and rows; `from_recording.py` reads the calls of another run. `doors.py` intercepts calls
(names and axes are those of `recorder`), `intervene.py` assigns changes to modules and applies
them, and `certificate.py` compares each changed output with the definition. `ablation.py` takes
heads away one by one; `skipping.py` skips the blocks that run before a change.
"""

from heedful.interventions import change
from heedful.interventions.ablation import Context, ablate
from heedful.interventions.intervene import intervene

__all__ = ["Context", "ablate", "change", "intervene"]
