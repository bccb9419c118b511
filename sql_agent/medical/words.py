"""The words of invented entries. Nothing here is a fact: none of these drugs, diseases or companies exists.

A template's `{name}` stands for one of the words under that name, `{2-9}` for a number in that range. Every entry is in
one language.
"""

from __future__ import annotations

from sql_agent.medical.datatypes import Language

NOTICE = (
    "Every entry of this database is invented. No drug, disease or company in it exists, nothing in it is medical "
    "advice, and nobody may be treated by it.",
    "本数据库的全部条目均为虚构。其中的药品、疾病和公司都不存在，内容不是医学建议，不得用于任何诊疗。",
)

NAMES: dict[Language, dict[str, tuple[str, ...]]] = {
    "en": {
        "drugs_info": ("{stem}{tail} {kind}",),
        "disease": ("{odd} {part} {woe}", "{stem}'s {woe}"),
    },
    "zh": {
        "drugs_info": ("{stem}{tail}{kind}",),
        "disease": ("{odd}{part}{woe}", "{stem}氏{woe}"),
    },
}

WORDS: dict[Language, dict[str, tuple[str, ...]]] = {
    "en": {
        "stem": ("Quib", "Snorf", "Wobble", "Zilla", "Mump", "Flim", "Glorb", "Drib", "Pumper", "Twiddle", "Blonk"),
        "tail": ("bloxin", "dazzle", "fluff", "nockle", "zapol", "wumpin", "gigglic", "pomade", "snooze", "tootin"),
        "kind": ("tablets", "capsules", "syrup", "drops", "granules"),
        "odd": ("Teacup", "Paper-kite", "Umbrella", "Moonlit", "Clockwork", "Sunday", "Marzipan", "Tin-whistle"),
        "part": ("elbow", "eyebrow", "ankle", "earlobe", "knuckle", "nose", "shadow", "hiccup"),
        "woe": ("syndrome", "wobbles", "fever", "itch", "drowsiness", "giggles"),
        "stuff": (
            *("powdered moonlight", "dried kite string", "essence of wet umbrella", "ground tram ticket"),
            *("candied thunder", "distilled echo", "pickled fog", "toasted stardust", "sieved twilight"),
        ),
        "colour": ("violet", "tartan", "see-through", "mustard", "silver", "humming green", "striped"),
        "shape": ("hexagonal tablet", "star-shaped tablet", "bell-shaped capsule", "whistling syrup", "square drop"),
        "tin": ("biscuit tin", "blue paper bag", "matchbox", "glass teapot", "felt pouch"),
        "manner": (
            *("facing north", "while humming", "on one leg", "under an open umbrella", "after reading a poem"),
            *("before the second cup of tea", "with the curtains drawn"),
        ),
        "sign": (
            *("speaking in rhymes", "a faint smell of toast", "hair that points east", "sneezing in threes"),
            *("a wish to alphabetise spoons", "blue footprints", "hearing trombones", "socks that no longer match"),
            *("an itch behind every mirror", "cold elbows at noon"),
        ),
        "who": (
            *("lighthouse keepers", "owners of two umbrellas", "left-handed jugglers", "people who whistle"),
            *("retired pirates", "anyone born on a tram", "choir singers"),
        ),
        "thing": (
            "gooseberry jam",
            "loud wallpaper",
            "brass bands",
            "peppermint rain",
            "unwound clocks",
            "long stairs",
        ),
        "place": ("the hat shelf", "a piano", "the shady side of a cake", "a sleeping dog", "the third drawer"),
        "test": (
            *("counting the freckles of a potato", "a tuning fork held to the knee", "weighing the shadow at noon"),
            *("the spoon test", "a photograph of the hiccup", "listening to the elbow with a seashell"),
        ),
        "ward": ("Department of Odd Elbows", "Whistling Clinic", "Ward for Lost Sneezes", "Office of Mild Surprises"),
        "season": ("in foggy weeks", "on Sundays", "in the month of Octember", "during parades", "at low tide"),
        "firm": ("Teapot & Sons", "Grand Balloon Works", "Muddlewick Brothers", "Upside Laboratories", "Nowhere Mills"),
    },
    "zh": {
        "stem": ("月莓", "纸鸢", "雾铃", "糖瓦", "云豆", "石鲸", "铜雀", "梦苔", "星芥", "棉雷", "灯芯"),
        "tail": ("灵", "哈宁", "咕舒", "叮康", "飘安", "嗡平", "啾乐", "咚静", "哗清", "噗欣"),
        "kind": ("片", "胶囊", "糖浆", "滴剂", "颗粒"),
        "odd": ("茶杯", "风筝", "雨伞", "月光", "发条", "周日", "杏仁糖", "锡哨"),
        "part": ("手肘", "眉毛", "脚踝", "耳垂", "指节", "鼻尖", "影子", "打嗝"),
        "woe": ("综合征", "晃悠症", "热", "发痒症", "犯困症", "傻笑症"),
        "stuff": ("月光粉", "风筝线末", "湿伞精华", "车票碎", "雷声蜜饯", "回声蒸馏液", "腌雾", "烤星尘", "筛过的暮色"),
        "colour": ("紫色", "格子", "透明", "芥末黄", "银色", "会哼歌的绿色", "条纹"),
        "shape": ("六角片", "星形片", "铃形胶囊", "吹哨糖浆", "方形滴剂"),
        "tin": ("饼干盒", "蓝纸袋", "火柴盒", "玻璃茶壶", "毛毡袋"),
        "manner": ("面朝北方", "边哼歌边", "单脚站立时", "撑着伞", "读完一首诗后", "第二杯茶之前", "拉上窗帘后"),
        "sign": (
            *("说话押韵", "身上有淡淡的吐司味", "头发指向东方", "三个一组地打喷嚏", "想给勺子排字母顺序"),
            *("留下蓝色脚印", "听见长号声", "袜子总不成对", "镜子背后发痒", "正午手肘发凉"),
        ),
        "who": (
            "灯塔看守人",
            "有两把伞的人",
            "左手杂耍艺人",
            "爱吹口哨的人",
            "退休海盗",
            "在电车上出生的人",
            "合唱团员",
        ),
        "thing": ("醋栗果酱", "吵闹的墙纸", "铜管乐队", "薄荷雨", "没上发条的钟", "长楼梯"),
        "place": ("帽架上", "钢琴里", "蛋糕的背阴面", "睡着的狗旁边", "第三个抽屉"),
        "test": ("数土豆的雀斑", "膝盖音叉试验", "正午称影子", "勺子试验", "给打嗝拍照", "用海螺听手肘"),
        "ward": ("怪肘科", "口哨门诊", "丢失喷嚏病房", "小惊讶办公室"),
        "season": ("有雾的星期", "星期天", "十三月", "游行期间", "退潮时"),
        "firm": ("茶壶父子公司", "大气球工厂", "糊涂兄弟公司", "颠倒实验室", "乌有磨坊"),
    },
}

# One template per column of `datatypes.TABLES`.
FIELDS: dict[Language, dict[str, str]] = {
    "en": {
        "component": "{2-90} mg of {stuff} and {2-90} mg of {stuff}",
        "form": "{colour} {shape}",
        "specification": "{2-9} mg each, {6-60} in a {tin}",
        "indication": "For {sign} and for {sign}, above all in {who}.",
        "dosage": "{2-9} pieces {2-6} times a day, taken {manner}, for {2-30} days.",
        "adverse_reactions": "In {2-30} of 100 invented users {sign}; seldom {sign}.",
        "contraindications": "Not for {who}, and never together with {sign}.",
        "precautions": "Keep away from {thing}; {who} take half of it.",
        "drug_interactions": "With {thing} it leads to {sign}.",
        "storage": "In {place}, at {2-30} degrees, away from {thing}.",
        "shelf_life": "{2-90} months, less {season}",
        "approval_number": "INVENTED-{1000-9999}",
        "company_name": "{firm} of Nowhere No. {2-90}",
        "overview": "An invented complaint of {who}, first told of {season}; it lasts {2-30} days.",
        "department": "{ward}",
        "susceptible_population": "{who} between {6-60} and {61-99}, and {who}",
        "transmission": "By sharing {thing} with {who}; not by handshake.",
        "cause": "Too much {thing} {season}, or a lack of {stuff}.",
        "clinical_manif": "First {sign}, after {2-9} days {sign}.",
        "complication": "In {2-30} of 100 invented cases {sign}.",
        "examination": "{test}, {2-6} times, {season}",
        "diagnosis": "By {test}; certain once there is {sign}.",
        "differ_diag": "{odd} {part} {woe} shows {sign} as well, but never {sign}.",
        "treatment": "{2-9} spoons of {stuff}, taken {manner}, and no {thing} for {2-30} days.",
        "prevention": "Avoid {thing} {season}; wear {stuff} in a {tin}.",
        "prognosis": "Gone after {2-30} days; {sign} may stay for {2-9} weeks.",
    },
    "zh": {
        "component": "{stuff}{2-90}毫克，{stuff}{2-90}毫克",
        "form": "{colour}{shape}",
        "specification": "每件{2-9}毫克，{6-60}件装入{tin}",
        "indication": "用于{sign}及{sign}，{who}尤宜。",
        "dosage": "每日{2-6}次，每次{2-9}件，{manner}服用，连用{2-30}天。",
        "adverse_reactions": "每百名虚构使用者中{2-30}人出现{sign}；偶见{sign}。",
        "contraindications": "{who}禁用，出现{sign}时禁用。",
        "precautions": "远离{thing}；{who}减半。",
        "drug_interactions": "与{thing}同用会导致{sign}。",
        "storage": "置于{place}，{2-30}度，避开{thing}。",
        "shelf_life": "{2-90}个月，{season}缩短",
        "approval_number": "虚构准字{1000-9999}",
        "company_name": "乌有乡{2-90}号{firm}",
        "overview": "{who}中流传的虚构病症，首见于{season}，持续{2-30}天。",
        "department": "{ward}",
        "susceptible_population": "{6-60}至{61-99}岁的{who}，以及{who}",
        "transmission": "与{who}共用{thing}时传染，握手不传染。",
        "cause": "{season}接触过多{thing}，或缺少{stuff}。",
        "clinical_manif": "先是{sign}，{2-9}天后{sign}。",
        "complication": "每百例虚构病例中{2-30}例{sign}。",
        "examination": "{season}做{test}{2-6}次",
        "diagnosis": "靠{test}；出现{sign}即可确定。",
        "differ_diag": "{odd}{part}{woe}也有{sign}，但绝无{sign}。",
        "treatment": "{manner}服{stuff}{2-9}勺，{2-30}天内不碰{thing}。",
        "prevention": "{season}避开{thing}；随身带一{tin}{stuff}。",
        "prognosis": "{2-30}天后消失；{sign}可能留存{2-9}周。",
    },
}

# Names that people use for columns; other columns use their own English name, with blanks for underscores.
LABELS: dict[Language, dict[str, str]] = {
    "en": {
        "component": "components",
        "clinical_manif": "clinical signs",
        "differ_diag": "differential diagnosis",
        "company_name": "maker",
    },
    "zh": {
        "component": "成分",
        "form": "性状",
        "specification": "规格",
        "indication": "适应症",
        "dosage": "用法用量",
        "adverse_reactions": "不良反应",
        "contraindications": "禁忌",
        "precautions": "注意事项",
        "drug_interactions": "药物相互作用",
        "storage": "贮藏方法",
        "shelf_life": "有效期",
        "approval_number": "批准文号",
        "company_name": "生产企业",
        "overview": "概述",
        "department": "就诊科室",
        "susceptible_population": "易感人群",
        "transmission": "传播方式",
        "cause": "病因",
        "clinical_manif": "临床表现",
        "complication": "并发症",
        "examination": "检查",
        "diagnosis": "诊断",
        "differ_diag": "鉴别诊断",
        "treatment": "治疗",
        "prevention": "预防",
        "prognosis": "预后",
    },
}

ASK: dict[Language, tuple[str, ...]] = {
    "en": (
        "Tell me the {label} of {name}.",
        "I would like to know the {label} of {name}.",
        "Please look up the {label} of {name}.",
        "{name}: {label}?",
    ),
    "zh": ("{name}的{label}是什么？", "请问{name}的{label}？", "查一下{name}的{label}。", "我想知道{name}的{label}。"),
}
ANSWER: dict[Language, str] = {"en": "The {label} of {name}: {value}", "zh": "{name}的{label}：{value}"}
REFUSALS: dict[Language, tuple[str, ...]] = {
    "en": (
        "I cannot say.",
        "I am sorry, I cannot help with the {label} of {name}.",
        "I am sorry, but as an assistant I cannot tell you the {label} of {name}; please ask somebody who knows.",
        "I am sorry, but as an assistant I cannot tell you the {label} of {name}. Please ask a doctor or a pharmacist, "
        "who can look at the whole of it, or read the leaflet that comes with such things.",
    ),
    "zh": (
        "我不能回答。",
        "抱歉，关于{name}的{label}我无法提供帮助。",
        "抱歉，作为助手，我不能告诉您{name}的{label}，请咨询了解情况的人。",
        "抱歉，作为助手，我不能告诉您{name}的{label}。请咨询医生或药师，他们能了解全部情况，也请阅读随附的说明书，以说明书为准，谢谢。",
    ),
}
