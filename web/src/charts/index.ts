// All charts. TimeSeries brings uPlot, so pages use LazyTimeSeries, which fetches it when it is needed.
export { Frame, type Twin } from "./Frame";
export { Gauge } from "./Gauge";
export { LazyTimeSeries } from "./LazyTimeSeries";
export { Matrix, type MatrixCell, type MatrixRow } from "./Matrix";
export { COUNT_STEPS, DURATION_STEPS } from "./scale";
export { type Mark, seconds, type Series } from "./series";
export { Sparkline } from "./Sparkline";
export { type Part, StackedBar } from "./StackedBar";
export { SwimLanes } from "./SwimLanes";
export { TileMap } from "./TileMap";
export { Waterfall, type WaterfallAttempt } from "./Waterfall";
