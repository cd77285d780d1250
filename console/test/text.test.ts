import { expect, test } from "vitest";
import { match } from "../src/app/pattern";
import { parseValue, valueText } from "../src/editor/values";
import { bytes, count, duration, literal, measure, shape } from "../src/ui/format";

test.each([
  ["int", "12", 12],
  ["int", "1.5", undefined],
  ["int", "", null],
  ["float", "1e-3", 1e-3],
  ["float", "fast", undefined],
  ["ints", "3, 3", [3, 3]],
  ["ints", "(3,3)", [3, 3]],
  ["ints", "3x5", [3, 5]],
  ["ints", "3, 1.5", undefined],
  ["floats", "0.5 1", [0.5, 1]],
  ["str", "", ""],
] as const)("%s of %j is %j", (kind, text, value) => {
  expect(parseValue(kind, text)).toEqual(value);
});

test("a value's text means the value again", () => {
  for (const value of [[1, 2, 3], [7]]) expect(parseValue("ints", valueText(value))).toEqual(value);
});

test("numbers are short and say their unit", () => {
  expect([0, 999, 9999, 10_000, 25_557_032, 4.1e9].map(count)).toEqual([
    "0", "999", "9,999", "10.0 k", "25.6 M", "4.10 G",
  ]);
  expect([512, 1024, 1536 * 1024].map(bytes)).toEqual(["512 B", "1.00 KiB", "1.50 MiB"]);
  expect([0, 0.123456, 1e-7, NaN].map(measure)).toEqual(["0", "0.1235", "1.00e-7", "NaN"]);
  expect([5.25, 75, 7200].map(duration)).toEqual(["5.3 s", "1 min 15 s", "2 h 0 min"]);
  expect(shape([32, 3, 8], true)).toBe("3 × 8");
  expect([null, true, [3], [1, [2, 3]]].map(literal)).toEqual([
    "None", "True", "(3,)", "(1, (2, 3))",
  ]);
});

test("addresses name their parts", () => {
  expect(match("/p/:project/train/:trial?", "/p/7/train")).toEqual({ project: "7" });
  expect(match("/p/:project/train/:trial?", "/p/7/train/a%20b")).toEqual({ project: "7", trial: "a b" });
  expect(match("/p/:project/train/:trial?", "/p/7/edit")).toBeNull();
  expect(match("/", "/")).toEqual({});
  expect(match("/data", "/data/3")).toBeNull();
});
