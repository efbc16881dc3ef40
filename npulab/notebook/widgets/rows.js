// Rows in sight of a box that scrolls. Offsets and rooms are numbers of one unit: pixels, or rows.

// The rows of `count` that a box of so much room shows from an offset, as [first, end]; at the last rows the box is full.
function rowsInSight(offset, room, height, count) {
  const shown = Math.ceil(room / height), first = Math.max(0, Math.min(Math.floor(offset / height), count - shown));
  return [first, Math.min(first + shown, count)];
}

// The offset nearest to the present one that has what lies from `start` to `end` in sight.
function offsetInSight(offset, room, start, end) {
  return start < offset ? start : Math.max(offset, end - room);
}

// Scroll a box, and not the page around it, until one of its rows is in sight below its header.
function reveal(box, row, header) {
  const start = row.offsetTop - header;
  box.scrollTop = offsetInSight(box.scrollTop, box.clientHeight - header, start, start + row.offsetHeight);
}

