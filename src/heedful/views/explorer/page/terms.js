// What the words mean, under the pointer and for a screen reader.
import { html } from "./html.js";

const MEANS = {
  query: "What a token asks for: a vector that is compared with every key.",
  key: "What a token offers to those that ask.",
  value: "What a token hands on to those that look at it.",
  score: "How well a query fits a key: the sum of the products of their numbers.",
  scale: "What scores are multiplied by, mostly one over the root of the width of a key.",
  softcap: "c · tanh(score / c): no score can be larger than the cap.",
  bias: "A number that the model adds to the score, for the distance for example.",
  mask: "Which keys a query may see at all; hidden ones have no weight.",
  dimensions: "The numbers that a query and a key are made of.",
  "log-sum-exp": "The logarithm of the sum of e to the power of each score in the row.",
  sink: "The first token: many heads rest there when they have nothing to say.",
  "learned sink": "A score of the model for attending to nothing; it takes its share of the row.",
  "grouped heads": "Several query heads that share one head of keys and values.",
  head: "One of several parallel ways of attending in a layer.",
  weight: "The share of a row that a key gets: softmax of the scores. Rows sum to one.",
  proved:
    "These weights times the values gave the model's own output, and the texts are the right ones.",
  assumed: "The numbers are right; which text or head they belong to was inferred.",
  unproved: "The numbers could not be compared with the model's output.",
  refuted: "The numbers are not the model's: no weights are shown.",
  previous: "Weight on the token before.",
  self: "Weight on the token itself.",
  local: "Weight on tokens at most four places away.",
  broad: "How evenly a row is spread: its entropy, divided by the largest possible.",
  induction: "Weight on what came after earlier occurrences of the same token.",
  duplicate: "Weight on earlier occurrences of the same token.",
  entropy: "How spread out a row is, in nats.",
  distance: "How far back a row looks on average, in tokens.",
};

/** A word with its meaning under the pointer. @param {string} word @param {string} [meaning] */
export function Term(word, meaning = word) {
  const says = MEANS[meaning] ?? MEANS[word];
  return says ? html`<abbr title=${says} tabindex="0">${word}</abbr>` : word;
}
