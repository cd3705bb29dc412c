// The name of a call whose text may grow ends with how many tokens that has: "recording.text.call.T".
// The first T tokens give the same map whatever follows, so that an answer is the same for good.

/** Whether a call is of a text that may grow. @param {string} call */
export const isGrowing = (call) => call.split(".").length === 4;

/** A call, however many tokens its text has. @param {string} call */
export const textOf = (call) => call.split(".").slice(0, 3).join(".");

/** How many tokens the text has; NaN where it does not grow. @param {string} call */
export const lengthOf = (call) => Number(call.split(".")[3]);
