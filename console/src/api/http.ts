// Requests to the server: one function, one kind of error.

import type { ErrorBody } from "./records";

const PREFIX = "/api/v1";

/** What a request that failed says: the server's words, or that it was not reached. */
export class ApiError extends Error {
  readonly code: string;
  readonly hint: string | null;
  readonly where: string | null;
  readonly status: number;

  constructor(status: number, body: ErrorBody) {
    super(body.message);
    this.name = "ApiError";
    this.status = status;
    this.code = body.code;
    this.hint = body.hint;
    this.where = body.where;
  }
}

type Method = "GET" | "POST" | "PATCH" | "DELETE";

export interface RequestOptions {
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

export type Query = Record<string, string | number | boolean | null | undefined>;

/** The address of a route, for links and images too; what is null or undefined is left out. */
export function address(path: string, query: Query = {}): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const text = new URLSearchParams(pairs.map(([key, value]) => [key, String(value)])).toString();
  return PREFIX + path + (text ? `?${text}` : "");
}

export async function send(
  method: Method,
  url: string,
  options: RequestOptions = {},
): Promise<Response> {
  const headers: Record<string, string> = { ...options.headers };
  let body: BodyInit | undefined;
  if (options.body instanceof Blob) {
    headers["Content-Type"] = "application/octet-stream";
    body = options.body;
  } else if (method !== "GET") {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(options.body ?? {});
  }
  if (method !== "GET") headers["X-NNL"] = "1";
  let response: Response;
  try {
    response = await fetch(url, { method, headers, body, signal: options.signal ?? null });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (!response.ok) throw new ApiError(response.status, await errorBody(response));
  return response;
}

/** The server has ended, or was started anew and does not know this browser. */
export function unreachable(): ApiError {
  return new ApiError(0, {
    code: "unreachable",
    message: "The server does not answer.",
    hint:
      "Nothing on this page is lost while it stays open. Start it again with " +
      `\`--port ${window.location.port}\`, and open the address that it prints in another tab.`,
    where: null,
  });
}

async function errorBody(response: Response): Promise<ErrorBody> {
  try {
    return (await response.json()) as ErrorBody;
  } catch {
    return {
      code: "failed",
      message: `The server answered ${response.status} ${response.statusText}.`,
      hint: null,
      where: null,
    };
  }
}

export async function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return (await (await send("GET", address(path, query), { signal })).json()) as T;
}

export async function post<T>(path: string, body?: unknown, query?: Query): Promise<T> {
  return (await (await send("POST", address(path, query), { body })).json()) as T;
}

export async function patch<T>(path: string, body: unknown): Promise<T> {
  return (await (await send("PATCH", address(path), { body })).json()) as T;
}

export async function remove(path: string): Promise<void> {
  await send("DELETE", address(path));
}
