"use strict";
// Words of the page, English and Chinese, and how figures are written.

const WORDS = {
  curves: ["Curves", "曲线"],
  smoothing: ["Smoothing", "平滑"],
  curves_hint: ["Over training steps. Drag to zoom, double-click to go back.", "横轴为训练步数。拖动可放大，双击还原。"],
  samples: ["Samples", "生成样例"],
  evaluation: ["Evaluation", "评估"],
  data: ["Data", "数据"],
  checkpoints: ["Checkpoints", "检查点"],
  environment: ["Environment", "运行环境"],
  events: ["Events", "事件"],
  recipe: ["Recipe", "配方"],

  loss: ["Loss", "损失"],
  train_loss: ["training", "训练"],
  validation_loss: ["validation", "验证"],
  gradient_norm: ["Gradient norm", "梯度范数"],
  learning_rate: ["Learning rate", "学习率"],
  throughput: ["Throughput", "吞吐量"],
  tokens_per_second: ["tokens/s", "词元/秒"],
  mfu: ["MFU", "算力利用率"],
  memory: ["Memory", "内存"],
  resident: ["resident", "常驻内存"],
  device: ["device", "显存"],
  step_time: ["Time of a step", "每步耗时"],
  whole_step: ["whole step", "整步"],
  data_wait: ["waiting for data", "等待数据"],
  loss_scale: ["Loss scale", "损失缩放"],
  validation_ratio: ["Validation / training loss", "验证损失 / 训练损失"],
  norm: ["before clipping", "裁剪前"],
  value: ["value", "数值"],
  logarithmic: ["log scale", "对数坐标"],
  at_step: ["step {step}", "第 {step} 步"],
  thinned: ["{shown} of {all} points shown, extremes kept", "显示 {all} 个点中的 {shown} 个，保留极值"],
  not_finite: ["NaN or infinite values, gaps in the curve: {n}", "NaN 或无穷大的值（曲线断开处）：{n}"],
  more_signals: ["{n} more signals are in metrics.sqlite: {names}", "另有 {n} 个指标保存在 metrics.sqlite 中：{names}"],

  last_loss: ["Training loss", "训练损失"],
  last_validation: ["Validation loss", "验证损失"],
  perplexity: ["Perplexity", "困惑度"],
  bits_per_byte: ["Bits per byte", "每字节比特数"],
  duration: ["Duration", "用时"],
  speed: ["Tokens per second", "每秒词元数"],
  steps: ["Steps", "步数"],
  tokens: ["Tokens", "词元数"],
  of_first: ["{share} of the first", "为首步的 {share}"],
  parameters: ["{n} parameters", "{n} 参数"],

  finished: ["finished", "已完成"],
  stopped: ["stopped itself", "自行停止"],
  interrupted: ["interrupted", "被中断"],
  running: ["running when this was written", "生成报告时仍在运行"],
  broken_off: ["broken off", "意外终止"],

  step: ["Step", "步"],
  size: ["Size", "大小"],
  time: ["Time", "时间"],
  event: ["Event", "事件"],
  message: ["Message", "说明"],
  empty_prompt: ["empty prompt", "空提示"],
  sample_at: ["after step {step}", "第 {step} 步之后"],
  newest_events: ["The newest {shown} of {all}.", "共 {all} 个事件，显示最新的 {shown} 个。"],
  unreadable: ["Left out, as it could not be read: ", "无法读取，已略去："],
  written: [
    "Written by danlu {version} on {time}. This page holds all it shows and asks no other host for anything.",
    "由 danlu {version} 于 {time} 生成。本页自带全部内容，不访问任何网络。",
  ],

  kind_start: ["start", "开始"],
  kind_resume: ["resume", "恢复训练"],
  kind_checkpoint: ["checkpoint", "检查点"],
  kind_skipped_step: ["skipped step", "跳过的步"],
  kind_stop: ["stop", "停止"],
  kind_interrupted: ["interrupted", "中断"],
  kind_finished: ["finished", "完成"],
  kind_warning: ["warning", "警告"],
  kind_sample: ["sample", "样例"],
  kind_dropped: ["records lost", "记录丢失"],

  key_cpu: ["CPU", "处理器"],
  key_cores_physical: ["physical cores", "物理核心"],
  key_cores_logical: ["logical cores", "逻辑核心"],
  key_cores_usable: ["usable cores", "可用核心"],
  key_memory_bytes: ["memory", "内存"],
  key_memory_available_bytes: ["memory available", "可用内存"],
  key_os: ["operating system", "操作系统"],
  key_python: ["Python", "Python"],
  key_danlu: ["danlu", "danlu"],
  key_torch: ["PyTorch", "PyTorch"],
  key_loss: ["loss", "损失"],
  key_perplexity: ["perplexity", "困惑度"],
  key_bits_per_byte: ["bits per byte", "每字节比特数"],
  key_tokens: ["tokens", "词元数"],
  key_documents: ["documents", "文档数"],
  key_text_bytes: ["text", "文本"],
  key_bytes: ["bytes", "字节数"],
  key_vocab_size: ["vocabulary", "词表大小"],
  key_device: ["device", "设备"],
  key_train: ["training", "训练"],
  key_validation: ["validation", "验证"],
  key_seconds: ["duration", "用时"],
};

let language = /^zh/i.test(navigator.language || "") ? "zh" : "en";

/** A word in the language chosen, its {blanks} filled. */
function word(key, blanks = {}) {
  const text = WORDS[key][language === "zh" ? 1 : 0];
  return text.replace(/\{(\w+)\}/g, (_, name) => blanks[name]);
}

/** The label of a dotted key of a file: known parts in words, others as they are. */
function keyLabel(key) {
  return key.split(".").map((part) => (WORDS["key_" + part] ? word("key_" + part) : part.replaceAll("_", " "))).join(" · ");
}

function scaled(value, base, units, digits) {
  let unit = 0;
  while (Math.abs(value) >= base * 0.9995 && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  return (unit === 0 ? String(Math.round(value)) : value.toFixed(digits)) + units[unit];
}

const write = {
  count: (value) => scaled(value, 1000, ["", "k", "M", "B", "T"], 1),
  bytes: (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"], 1),
  share: (value) => (100 * value).toFixed(1) + "%",
  whole: (value) => Math.round(value).toLocaleString("en"),
  seconds: (value) => (value < 0.9995 ? (1000 * value).toPrecision(3) + " ms" : value.toPrecision(3) + " s"),
  /** Four digits, with an exponent where that is shorter. */
  figure(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e6) return value.toExponential(2);
    return value.toFixed(Math.max(0, 3 - Math.max(0, Math.floor(Math.log10(size)))));
  },
  /** The two largest units. */
  duration(value) {
    const [d, h, m, s] = language === "zh" ? [" 天 ", " 时 ", " 分 ", " 秒"] : ["d ", "h ", "m ", "s"];
    if (value < 9.95) return value.toFixed(1) + " " + s.trim();
    const parts = [[86400, d], [3600, h], [60, m], [1, s]], whole = Math.round(value);
    const first = Math.max(0, parts.findIndex(([unit]) => whole >= unit));
    const text = parts.slice(first, first + 2).map(([unit, name], i) => {
      const n = Math.floor((i ? whole % parts[first][0] : whole) / unit);
      return (i ? String(n).padStart(2, "0") : n) + name;
    });
    return text.join("").trim();
  },
  time: (value) => new Date(1000 * value).toLocaleString(language === "zh" ? "zh-CN" : "en-GB", { dateStyle: "medium", timeStyle: "short" }),
  /** Any value of a file, by the look of its key. */
  fact(key, value) {
    if (typeof value !== "number") return String(value);
    if (/(^|[._])bytes$/.test(key) && !/per_bytes?$/.test(key)) return write.bytes(value);
    if (/(^|[._])seconds$/.test(key)) return write.duration(value);
    return Number.isInteger(value) && Math.abs(value) < 1e15 ? value.toLocaleString("en") : write.figure(value);
  },
};
