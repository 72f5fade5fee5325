/** Requests to /api/v1: typed answers, one kind of error, the CSRF header on writes, addresses relative to <base>. */
import { Store } from "../store";
import type { Done, Me, Preview } from "./types";

const TIMEOUT_MS = 20_000;

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint = "",
  ) {
    super(message);
  }
}

/** Who is using the dashboard; null until the server has said it, or when a log-in is needed. */
export const me = new Store<Me | null>(null);
export const loginNeeded = new Store(false);

type Query = Record<string, string | number | boolean | null | undefined>;

/** `runs/7/items?state=dead`: empty values are left out. */
export function withQuery(path: string, query: Query): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return text === "" ? path : `${path}${path.includes("?") ? "&" : "?"}${text}`;
}

/** A path of the API from parts that may hold any character. */
export function apiPath(...parts: (string | number)[]): string {
  return parts.map((part) => encodeURIComponent(String(part))).join("/");
}

/** Paths are below /api/v1; one that begins with a slash is of the server itself: `/jobs`, `/channels`. */
export function apiUrl(path: string): string {
  return new URL(path.startsWith("/") ? path.slice(1) : `api/v1/${path}`, document.baseURI).href;
}

export function errorFrom(status: number, body: unknown): ApiError {
  const error = (body as { error?: { code?: unknown; message?: unknown; hint?: unknown } } | null)?.error;
  if (error && typeof error.message === "string") {
    return new ApiError(status, String(error.code ?? "error"), error.message, String(error.hint ?? ""));
  }
  return new ApiError(status, "http_error", `The server answered with status ${status}.`);
}

async function request<T>(method: string, path: string, body?: unknown, headers: HeadersInit = {}): Promise<T> {
  let response: Response;
  try {
    response = await fetch(apiUrl(path), {
      method,
      credentials: "same-origin",
      headers: {
        Accept: "application/json",
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...(method === "GET" ? {} : { "X-Shoal-CSRF": me.value?.csrf ?? "" }),
        ...headers,
      },
      body: body === undefined ? null : JSON.stringify(body),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch {
    throw new ApiError(0, "unreachable", "The server does not answer.", "Is `shoal serve` running?");
  }
  const answer: unknown = response.status === 204 ? null : await response.json().catch(() => null);
  if (!response.ok) {
    if (response.status === 401) loginNeeded.set(true);
    throw errorFrom(response.status, answer);
  }
  return answer as T;
}

export const get = <T>(path: string): Promise<T> => request<T>("GET", path);

export type Method = "POST" | "PUT" | "PATCH" | "DELETE";

/** A change. `key` makes it safe to send again: the server applies it once. */
export interface Action {
  method: Method;
  path: string;
  body?: unknown;
}

export const preview = (action: Action): Promise<Preview> =>
  request<Preview>(action.method, withQuery(action.path, { preview: true }), action.body);

export const perform = (action: Action, key: string): Promise<Done> =>
  request<Done>(action.method, action.path, action.body, { "Idempotency-Key": key });

export function idempotencyKey(): string {
  // randomUUID exists only on secure origins; a plain-HTTP address of the local network is not one.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function loadMe(): Promise<void> {
  const answer = await get<Me>("me");
  me.set(answer);
  loginNeeded.set(false);
}

export async function logIn(token: string): Promise<void> {
  await request<unknown>("POST", "session", { token });
  await loadMe();
}

export async function logOut(): Promise<void> {
  await request<unknown>("DELETE", "session");
  me.set(null);
  loginNeeded.set(true);
}

/** Whether the reader may change things. The server checks it again. */
export const mayAct = (who: Me | null): boolean => who?.role === "operator";
