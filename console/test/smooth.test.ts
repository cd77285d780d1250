import { expect, test } from "vitest";
import { extremes } from "../src/training/smooth";

const VALUES = Array.from({ length: 50 }, (_, index) => Math.sin(index * 1.7) + index / 20);

test("the band reaches as far as the values around a point do", () => {
  const { low, high } = extremes(VALUES, 0.8); // five points on each side
  expect(low[20]).toBe(Math.min(...VALUES.slice(15, 26)));
  expect(high[0]).toBe(Math.max(...VALUES.slice(0, 6)));
});

test("values that are no numbers do not reach into the band", () => {
  const { low, high } = extremes([1, NaN, 3], 0.5);
  expect([low[1], high[1]]).toEqual([1, 3]);
});
