// Times in the reader's zone, from seconds since 1970.

/** A shorter time gives no rate. */
export const LEAST_SECONDS = 2;

export function clockTime(at: number, withSeconds = false): string {
  const date = new Date(at * 1000);
  const two = (n: number) => String(n).padStart(2, "0");
  const minutes = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return withSeconds ? `${minutes}:${two(date.getSeconds())}` : minutes;
}

export function dayAndTime(at: number): string {
  const date = new Date(at * 1000);
  const two = (n: number) => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clockTime(at)}`;
}
