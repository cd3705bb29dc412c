export interface VNode {
  type: unknown;
  props: Record<string, unknown>;
  key: unknown;
}
export type Child = VNode | string | number | boolean | null | undefined | Child[];
export function h(type: unknown, props: unknown, ...children: unknown[]): VNode;
export function render(what: Child, parent: Element | ShadowRoot): void;
export const Fragment: unknown;
