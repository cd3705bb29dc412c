type Template<T> = (strings: TemplateStringsArray, ...values: unknown[]) => T;
declare const htm: {
  bind<T>(h: (type: unknown, props: unknown, ...children: unknown[]) => T): Template<T>;
};
export default htm;
