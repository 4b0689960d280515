"""Bad text for the default quality model: good text after a crawl's accidents, and text that was never meant to be read."""

from __future__ import annotations

import base64
import json
import random
import re

PART = re.compile("[\u3400-\u9fff]|[^\\W\u3400-\u9fff]+|\\s+|[^\\w\\s]")


def _shuffled(text: str, rng: random.Random) -> str:
    parts = PART.findall(text)
    rng.shuffle(parts)
    return "".join(parts)


def _windows(text: str, rng: random.Random) -> str:
    """Words in disorder within a few places: machine translation gone wrong."""
    parts = [part for part in PART.findall(text) if not part.isspace()]
    order = sorted(range(len(parts)), key=lambda at: at + rng.uniform(0, 6))
    return ("" if _han(text) else " ").join(parts[at] for at in order)


def _han(text: str) -> bool:
    return len(re.findall("[\u3400-\u9fff]", text)) > len(text) / 4


def _mojibake(text: str, rng: random.Random) -> str:
    if not _han(text):
        text = re.sub("[aeiou]", lambda m: rng.choice("éüñ’“àö") if rng.random() < 0.15 else m[0], text)
    wrong = rng.choice(["latin-1", "cp1252", "gb18030"])
    return text.encode("utf-8").decode(wrong, rng.choice(["ignore", "replace"]))


def _lost(text: str, rng: random.Random) -> str:
    rate = rng.uniform(0.05, 0.3)
    return "".join(rng.choice("?\ufffd□") if c.isalpha() and rng.random() < rate else c for c in text)


def _typed(text: str, rng: random.Random) -> str:
    """Bad recognition: letters swapped, doubled, lost."""
    rate = rng.uniform(0.12, 0.35)
    out = []
    for c in text:
        way = rng.random()
        out.append(
            c if way > rate or not c.isalpha() else rng.choice(["", c + c, rng.choice("lI1|rnmvw") + c, rng.choice("ecoa0")])
        )
    return "".join(out)


def _keywords(text: str, rng: random.Random) -> str:
    words = [word for word in PART.findall(text) if len(word) > 3 or word[:1] >= "\u3400"]
    sign = rng.choice([", ", " | ", "\n", " - ", "、", " / ", " #"])
    return sign.join(
        rng.choice(words or ["x"]) + (rng.choice(words or ["x"]) if _han(text) else "") for _ in range(len(words) // 2 + 5)
    )


def _repeated(text: str, rng: random.Random) -> str:
    lines = [line for line in re.split(r"[\n。.]", text) if line.strip()][: rng.randint(1, 2)] or [text]
    return "\n".join(line for _ in range(rng.randint(6, 20)) for line in lines)


def _marked_up(text: str, rng: random.Random) -> str:
    tags = ["div", "span", "li", "td", "a href='#'", "p class=x", "br", "img src=1.gif"]
    return "".join(f"<{rng.choice(tags)} id={rng.randrange(999)}>{word}&nbsp;" for word in PART.findall(text)[:120])


def _glued(text: str, rng: random.Random) -> str:
    return re.sub(r"\s+", "", text) if not _han(text) else " ".join(text)


def _cut(text: str, rng: random.Random) -> str:
    lines = re.findall(".{1,14}", text)
    return "\n".join(f"{line.strip()}..." for line in lines if rng.random() < 0.6)


SPOILS = [_shuffled, _windows, _mojibake, _lost, _typed, _keywords, _repeated, _marked_up, _glued, _cut]


def spoiled(text: str, rng: random.Random) -> str:
    """A good text after one accident. Chinese in another order is left out: so few texts do not teach which order is right."""
    return rng.choice(SPOILS[2:] if _han(text) else SPOILS)(text[:1500], rng)


MENU = [
    "Home About Contact Login Register Search Cart Checkout Wishlist Help FAQ Privacy Terms Sitemap Blog News Careers Press "
    "Share Tweet Next Previous Back Top Menu Close Skip Subscribe Cookies Settings Language Account Download Print",
    "首页 关于我们 联系我们 登录 注册 搜索 购物车 帮助中心 网站地图 友情链接 版权所有 上一页 下一页 返回顶部 更多 收藏本站 "
    "设为首页 分享到 微信 微博 客服 在线咨询 产品中心 新闻动态 公司简介 招聘 下载 评论 点赞 转发 举报 热门推荐 "
    "猜你喜欢 相关阅读 阅读全文 展开 收起",
]
OFFERS = [
    "buy cheap {0} online free shipping best price {0} discount order now click here limited offer {1} sale 100% guaranteed",
    "WIN $$$ {1} today!!! click HERE to claim your FREE {0} >>> visit www.{0}{1}.xyz no credit card required!!!",
    "best {0} casino bonus poker slots {1} bet now jackpot payday loans viagra cialis replica watches cheap seo backlinks {0}",
    "加微信{1}免费领取{0}，名额有限，点击进入！！！诚招代理，日赚{1}元，稳赚不赔，详情咨询QQ{1}",
    "{0}批发厂家直销 {0}价格 {0}多少钱 {0}图片 哪里有卖{0} 专业{0}公司 电话{1} 欢迎来电咨询",
    "注册送{1}元，彩票博彩真人{0}平台，首存优惠，提款秒到，代开发票，办证刻章，贷款秒批，{0}",
    "本站所有资源均来自网络，如有侵权请联系删除。{0}最新章节免费阅读，{0}全文无弹窗，求月票求收藏求推荐票{1}",
    "京ICP备{1}号 京公网安备{1}号 增值电信业务经营许可证 {0} 未经授权禁止转载 违法和不良信息举报电话{1} Copyright {0}",
    "We use cookies to improve your experience. Accept all cookies. Manage preferences. By continuing you agree to our {0} "
    "policy. Sign up for our newsletter. Enter your email. All rights reserved {1}.",
    "lorem ipsum dolor sit amet {0} consectetur adipiscing elit sed do {1} eiusmod tempor incididunt ut labore et dolore",
]
THINGS = [
    "shoes",
    "handbags",
    "phone",
    "tablets",
    "watches",
    "software",
    "insurance",
    "hotel",
    "flights",
    "手机",
    "减肥药",
    "化妆品",
    "机械设备",
    "小说",
    "娱乐",
    "不锈钢",
    "空调",
    "培训",
    "车票",
]


def made(rng: random.Random) -> str:
    """A text of lines that no one writes to be read: menus, offers, dumps, logs, tables."""
    return rng.choice([_menu, _offers, _offers, _dump, _log, _table, _letters])(rng)


def _menu(rng: random.Random) -> str:
    words = rng.choice(MENU).split()
    return rng.choice([" | ", "\n", " > ", " ", " · "]).join(rng.choice(words) for _ in range(rng.randint(20, 150)))


def _offers(rng: random.Random) -> str:
    lines = [rng.choice(OFFERS).format(rng.choice(THINGS), rng.randrange(10**6)) for _ in range(rng.randint(2, 12))]
    return rng.choice(["\n", " "]).join(lines)


def _dump(rng: random.Random) -> str:
    data = rng.randbytes(rng.randint(100, 900))
    return rng.choice(
        [base64.b64encode(data).decode(), data.hex(" ", 2), json.dumps({data[i : i + 4].hex(): i for i in range(60)})]
    )


def _log(rng: random.Random) -> str:
    levels, words = ["INFO", "DEBUG", "WARN", "ERROR"], ["session", "cache", "worker", "GET /index.php", "timeout", "retry", "OK"]
    return "\n".join(
        f"2024-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} {rng.randrange(24):02}:{rng.randrange(60):02}:07,042 "
        f"[{rng.choice(levels)}] {rng.choice(words)} id={rng.randrange(10**8):x} {rng.choice(words)} {rng.randrange(500)}ms"
        for _ in range(rng.randint(8, 40))
    )


def _table(rng: random.Random) -> str:
    sign = rng.choice([",", "\t", " | ", " "])
    return "\n".join(
        sign.join(str(round(rng.uniform(-99, 9999), rng.randrange(3))) for _ in range(8)) for _ in range(rng.randint(8, 40))
    )


def _letters(rng: random.Random) -> str:
    pools = [
        "abcdefghijklmnopqrstuvwxyz    ",
        "!@#$%^&*()_+-=[]{}|;:,.<>?~ ",
        "★☆◆●■▲→♥♪😀🔥👍💯 ",
        "的一是了我不人在他有这个上们来到时大地为",
    ]
    pool = rng.choice(pools)
    return "".join(rng.choice(pool) for _ in range(rng.randint(150, 1500)))
