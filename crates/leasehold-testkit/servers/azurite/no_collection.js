// Node loads this file before Azurite. Ten minutes after its start, Azurite looks for contents that no blob refers to,
// and does not respond until it has deleted them one by one. After the thousands of writes of the tests, this takes
// minutes. Azurite has no option for the interval.
const { realpathSync } = require("fs");
const { createRequire } = require("module");

const constants = createRequire(realpathSync(process.argv[1]))("./utils/constants");
if (typeof constants.DEFAULT_GC_INTERVAL_MS !== "number") {
    throw new Error("this version of Azurite has another name for the interval of its collections");
}
constants.DEFAULT_GC_INTERVAL_MS = 2 ** 31 - 1;
