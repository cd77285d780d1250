import { expect, test } from "vitest";
import { closed, record, redo, start, undo } from "../src/graph/history";

test("undo goes back step by step, redo the same way again", () => {
  let history = start(0);
  for (const value of [1, 2, 3]) history = record(history, value);
  const seen = [history.present];
  for (let step = 0; step < 4; step++) seen.push((history = undo(history)).present);
  expect(seen).toEqual([3, 2, 1, 0, 0]);
  for (let step = 0; step < 4; step++) history = redo(history);
  expect(history.present).toBe(3);
});

test("a new step forgets what was undone", () => {
  const history = record(undo(record(start(0), 1)), 2);
  expect(redo(history).present).toBe(2);
  expect(undo(history).present).toBe(0);
});

test("typing is one step, a pause begins another", () => {
  let history = start("");
  history = record(history, "1", "kernel", 0);
  history = record(history, "12", "kernel", 300);
  history = record(history, "123", "kernel", 5000);
  history = record(history, "1234", "pad", 5100);
  expect((history = undo(history)).present).toBe("123");
  expect((history = undo(history)).present).toBe("12");
  expect(undo(history).present).toBe("");
});

test("a step after an undo does not join the one before", () => {
  let history = record(record(start("a"), "b", "name", 0), "c", "other", 10);
  history = record(undo(history), "d", "name", 20);
  expect(undo(history).present).toBe("b");
});

test("a step after saving does not join the one that was saved", () => {
  let history = closed(record(start("16"), "20", "outmaps", 0));
  history = record(history, "24", "outmaps", 300);
  expect(undo(history).present).toBe("20");
});

test("what changes nothing is no step", () => {
  const history = start({});
  expect(record(history, history.present)).toBe(history);
});
