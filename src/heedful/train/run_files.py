"""The files of a run's directory.

DIR/config.json         the model's configuration
DIR/tokenizer.json      the model's tokenizer
DIR/model.safetensors   the weights with the lowest validation loss
DIR/metrics.jsonl       a line for each step, validation and scoring of the watched text
DIR/watched/            recordings of the watched text, if any; each file is named by its step
DIR/logs/               files of the services that plot the run
DIR/pictures/           pictures drawn by `heedful plot`
DIR/state/              files for resuming: recipe.json (the plan), tokens.npy (the tokenized text),
                        and the checkpoint: last.safetensors or, of a sharded model, sharded/
"""

TOKENS, METRICS = "state/tokens.npy", "metrics.jsonl"
WATCHED, LOGS, PICTURES = "watched", "logs", "pictures"
