export interface ReadonlySignal<T> {
  readonly value: T;
  peek(): T;
}
export interface Signal<T> extends ReadonlySignal<T> {
  value: T;
}
export function signal<T>(first: T): Signal<T>;
export function computed<T>(make: () => T): ReadonlySignal<T>;
export function effect(does: () => void | (() => void)): () => void;
export function batch<T>(does: () => T): T;
export function untracked<T>(does: () => T): T;
