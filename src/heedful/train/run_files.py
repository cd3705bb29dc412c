"""The files of a run's directory.

DIR/config.json         the model's description
DIR/tokenizer.json      its tokenizer
DIR/model.safetensors   the weights with the lowest validation loss
DIR/metrics.jsonl       a line for each step and each validation
DIR/watched/            recordings of the text that is watched, if one is, each named by its step
DIR/logs/               what services that draw the run keep of it
DIR/pictures/           what `heedful plot` draws
DIR/state/              what continuing needs: recipe.json, tokens.npy, last.safetensors, or, of
                        many processes that each hold a part of the model, sharded/
"""

RECIPE, TOKENS, METRICS = "state/recipe.json", "state/tokens.npy", "metrics.jsonl"
WATCHED, LOGS, PICTURES = "watched", "logs", "pictures"
