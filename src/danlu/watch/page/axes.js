// Places on the axes. Data comes from `source`, which is that of embedded.js in a report and that of server.js in the live page.

/** A value between known points, straight lines between them; beyond the last ones the line goes on. */
function between(value, from, to) {
  if (from.length < 2) return from.length ? to[0] : value;
  let left = 0, right = from.length - 1;
  while (right - left > 1) {
    const middle = (left + right) >> 1;
    if (from[middle] <= value) left = middle;
    else right = middle;
  }
  const span = from[right] - from[left];
  return span ? to[left] + ((value - from[left]) * (to[right] - to[left])) / span : to[left];
}

/** Where a step lies on an axis of a run. */
function onAxis(axes, axis, step) {
  const known = axes && axes[axis];
  return axis === "step" || !known ? step : between(step, known.steps, known.x);
}
