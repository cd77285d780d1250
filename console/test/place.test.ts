import { expect, test } from "vitest";
import type { LayerNode } from "../src/api/network";
import { networkOf, reaches } from "../src/graph/document";
import { applyEdits } from "../src/graph/fixes";
import { NODE_HEIGHT, NODE_WIDTH } from "../src/graph/layout";
import { appendLayer, copyNodes, fragmentFrom, fragmentText, pasteNodes } from "../src/graph/place";
import { portsOf, refusal } from "../src/graph/ports";
import { documentOf, idsOf, LAYERS, wiring } from "./networks";

const CHAIN = documentOf([
  ["x", "Input"],
  ["a", "F.relu", "x"],
  ["b", "F.relu", "a"],
]);

test("an appended layer reads the lowest one", () => {
  const placed = appendLayer(CHAIN, "main", LAYERS, LAYERS.get("F.add2")!, null);
  expect(wiring(placed.document)).toContain("b:0 > add2.x0");
});

test("copies have ids and names of their own and keep the edges between them", () => {
  const fragment = fragmentFrom(fragmentText(copyNodes(CHAIN, "main", idsOf(CHAIN, "a", "b"))));
  const { document, added } = pasteNodes(CHAIN, "main", fragment!, { x: 10, y: 10 });
  expect(wiring(document)).toEqual(["a:0 > b.x", "a_2:0 > b_2.x", "x:0 > a.x"]);
  expect(added).toHaveLength(2);
  const again = pasteNodes(document, "main", fragment!, { x: 20, y: 20 }).document;
  expect(networkOf(again, "main").nodes.map((node) => node.name)).toContain("a_3");
});

test("what a repair adds covers no other layer", () => {
  const value = { id: "n9", type: "Input", name: "y", x: 10, y: 130, properties: {} };
  const { nodes } = networkOf(applyEdits(CHAIN, [{ op: "add_node", network: "main", value }]), "main");
  const added = nodes.at(-1)!;
  const others = nodes.slice(0, -1);
  expect(added.id).toBe("n9");
  const covers = ({ x, y }: LayerNode) => Math.abs(x - added.x) < NODE_WIDTH && Math.abs(y - added.y) < NODE_HEIGHT;
  expect(others.filter(covers)).toEqual([]);
});

test("other text in the clipboard is no network", () => {
  for (const text of ["", "hello", '{"nnl":', '{"nnl": {"nodes": 3}}', "[1]"]) {
    expect(fragmentFrom(text)).toBeNull();
  }
});

test("circles and second sources are refused, a list of inputs takes more", () => {
  const document = documentOf([
    ["x", "Input"],
    ["a", "F.relu", "x"],
    ["all", "F.concatenate", "a"],
  ]);
  const main = networkOf(document, "main");
  const why = (source: string, target: string, into: string) => {
    const node = main.nodes.find((other) => other.id === target)!;
    return refusal(main, portsOf(document, LAYERS, main, node), { source, out: 0, target, in: into });
  };
  expect(why("n3", "n2", "x")).toMatch("circle");
  expect(why("n2", "n2", "x")).toMatch("circle");
  expect(why("n1", "n2", "x")).toMatch("has a source already");
  expect(why("n1", "n3", "xs")).toBeNull();
  expect(why("n1", "n3", "z")).toMatch('no input "z"');
  expect(reaches(main, "n1", "n3")).toBe(true);
  expect(reaches(main, "n3", "n1")).toBe(false);
});
