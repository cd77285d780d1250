import { expect, test } from "vitest";
import { makeUnit, renameNetwork, renameNode, unitRefusal, unpackUnit } from "../src/graph/units";
import { documentOf, idsOf, LAYERS, wiring } from "./networks";

const DIAMOND = documentOf([
  ["x", "Input"],
  ["a", "F.relu", "x"],
  ["b", "F.relu", "x"],
  ["sum", "F.add2", "a", "b"],
  ["end", "Output", "sum"],
]);

test("a unit reads what its layers read, once each, and gives what others read", () => {
  const made = makeUnit(DIAMOND, "main", idsOf(DIAMOND, "a", "b", "sum"), LAYERS);
  expect(made.document.networks.map((network) => network.name)).toEqual(["main", "unit"]);
  expect(wiring(made.document)).toEqual(["unit:0 > end.x", "x:0 > unit.in"]);
  expect(wiring(made.document, 1)).toEqual([
    "a:0 > sum.x0",
    "b:0 > sum.x1",
    "in:0 > a.x",
    "in:0 > b.x",
    "sum:0 > out.x",
  ]);
});

test.each([["a", "b", "sum"], ["a"], ["a", "b"], ["sum"]])(
  "unpacking a unit gives the network back: %s",
  (...names) => {
    const made = makeUnit(DIAMOND, "main", idsOf(DIAMOND, ...names), LAYERS);
    const { document } = unpackUnit(made.document, "main", made.added[0] ?? "");
    expect(wiring(document)).toEqual(wiring(DIAMOND));
    expect(document.networks).toHaveLength(1);
  },
);

test("a path that leaves the layers and comes back is refused", () => {
  const [main] = DIAMOND.networks;
  expect(unitRefusal(main!, idsOf(DIAMOND, "x", "a"))).toMatch("stay outside");
  const chain = documentOf([
    ["x", "Input"],
    ["a", "F.relu", "x"],
    ["b", "F.relu", "a"],
    ["c", "F.relu", "b"],
  ]);
  expect(unitRefusal(chain.networks[0]!, idsOf(chain, "a", "c"))).toMatch("comes back");
  expect(unitRefusal(chain.networks[0]!, idsOf(chain, "a", "b"))).toBeNull();
});

test("ids and edges stay unique", () => {
  const made = makeUnit(DIAMOND, "main", idsOf(DIAMOND, "a", "b", "sum"), LAYERS).document;
  for (const key of ["nodes", "edges"] as const) {
    const ids = made.networks.flatMap((network) => network[key].map((part) => part.id));
    expect(new Set(ids).size).toBe(ids.length);
  }
});

test("renaming a network or its input reaches those that use it", () => {
  const made = makeUnit(DIAMOND, "main", idsOf(DIAMOND, "a"), LAYERS);
  const input = made.document.networks[1]?.nodes.find((node) => node.type === "Input");
  const named = renameNode(made.document, "unit", input?.id ?? "", "picture");
  const renamed = renameNetwork(named, "unit", "block");
  const unit = renamed.networks[0]?.nodes.find((node) => node.type === "Unit");
  expect(unit?.properties.network).toBe("block");
  expect(wiring(renamed)).toContain("x:0 > unit.picture");
});
