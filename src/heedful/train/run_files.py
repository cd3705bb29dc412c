"""The files of a run's directory.

DIR/config.json         the model's description
DIR/tokenizer.json      its tokenizer
DIR/model.safetensors   the weights with the lowest validation loss
DIR/metrics.jsonl       a line for each step and each validation
DIR/watched/            recordings of the watched text, if any, each named by its step
DIR/logs/               files of the services that plot the run
DIR/pictures/           pictures drawn by `heedful plot`
DIR/state/              files for resuming: recipe.json, tokens.npy, and last.safetensors or, for a
                        sharded model, sharded/
"""

RECIPE, TOKENS, METRICS = "state/recipe.json", "state/tokens.npy", "metrics.jsonl"
WATCHED, LOGS, PICTURES = "watched", "logs", "pictures"
