// Rows of data with small pictures, page by page.

import type { ReactNode } from "react";
import { address } from "../api/http";
import type { Cell } from "../api/records";
import { measure } from "./format";

interface ThumbSource {
  dataset: string;
  row: number;
  column: string;
}

/** The variable that a column belongs to: "x:image" to x, "y__3" to y. */
export function variableOf(column: string | undefined): string {
  return (column ?? "").split(":", 1)[0]?.split("__", 1)[0] ?? "";
}

interface CellViewProps {
  cell: Cell;
  source: ThumbSource;
  large?: boolean;
}

export function CellView({ cell, source, large = false }: CellViewProps) {
  if (cell.kind === "number") {
    return (
      <span className="number" title={cell.text}>
        {cell.text.length > 10 ? measure(Number(cell.text)) : cell.text}
      </span>
    );
  }
  if (cell.kind !== "image") return <span className="mono">{cell.text}</span>;
  const { dataset, row, column } = source;
  return (
    <img
      className={large ? "thumb large" : "thumb"}
      loading="lazy"
      alt={cell.text}
      title={cell.text}
      src={address(`/datasets/${dataset}/thumb/${row}/${encodeURIComponent(column)}`, { size: large ? 256 : 64 })}
    />
  );
}

interface PagerProps {
  offset: number;
  limit: number;
  total: number;
  go: (offset: number) => void;
  children?: ReactNode;
}

export function Pager({ offset, limit, total, go, children }: PagerProps) {
  const last = Math.min(offset + limit, total);
  return (
    <div className="row pager">
      {children}
      <span className="spread" />
      <span className="muted">
        {total === 0 ? "no rows" : `${offset + 1} to ${last} of ${total.toLocaleString("en")}`}
      </span>
      <button disabled={offset === 0} onClick={() => go(Math.max(0, offset - limit))}>
        Back
      </button>
      <button disabled={last >= total} onClick={() => go(offset + limit)}>
        Next
      </button>
    </div>
  );
}
