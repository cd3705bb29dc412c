// The probabilities of sampling, as in heedful.models.sampling: temperature, then top-k.

/** @typedef {{temperature: number, topK: number}} Sampling `topK` 0: all tokens */

/** The `count` likeliest ids with their probabilities, in order of the logits. @param {number[]} logits @param {Sampling} sampling @param {number} [count] */
export function likeliestIds(logits, { temperature, topK }, count = 10) {
  const order = logits.map((_, id) => id).sort((a, b) => logits[b] - logits[a]);
  const kept = temperature === 0 ? 1 : topK || order.length; // temperature 0: greedy
  const largest = logits[order[0]];
  const powers = order
    .slice(0, kept)
    .map((id) => Math.exp((logits[id] - largest) / Math.max(temperature, 1e-30)));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return order.slice(0, count).map((id, i) => ({ id, probability: (powers[i] ?? 0) / total }));
}
