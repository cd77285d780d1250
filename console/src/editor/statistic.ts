// What the bar on every node shows.

import { create } from "zustand";
import type { Costs } from "../api/network";
import { bytes, count } from "../ui/format";

export type Statistic = keyof Costs;

export const STATISTICS: Record<Statistic, string> = {
  multiply_adds: "Multiply-adds",
  parameters: "Parameters",
  bytes: "Output memory",
  operations: "Operations",
  adds: "Additions",
  multiplies: "Multiplications",
  divisions: "Divisions",
  exps: "Exponentials",
  ifs: "Comparisons",
  fixed_parameters: "Fixed parameters",
};

export function statisticText(statistic: Statistic, value: number | undefined): string {
  return statistic === "bytes" ? bytes(value) : count(value);
}

export const useStatistic = create<{ statistic: Statistic }>()(() => ({
  statistic: "multiply_adds",
}));
