"""Sample payloads of the three formats: every kind of block, with fields at every level that Refold does not know.

They are bytes, with odd spacing and escapes on purpose: what nobody changed must come back as exactly these bytes.
"""

from __future__ import annotations

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect

PNG = "iVBORw0KGgo="

CHAT_MESSAGES: list[bytes] = [
    rb'{"role":"system","content":"Be brief.","name":"house"}',
    rb'{"role":"developer","content":[{"type":"text","text":"Rules","cache_control":{"type":"ephemeral"}}]}',
    rb'{"role": "user", "content": "caf\u00e9 \ud83d\ude00", "x_client": {"b": 2, "a": 1.50}}',
    rb"""{"content":[{"type":"text","text":"Look:","x":1},
        {"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo=","detail":"low"}},
        {"type":"image_url","image_url":{"url":"https://example.org/a.png"}},
        {"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}},
        {"type":"file","file":{"file_id":"file-1"}},
        {"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,JVBERi0="}},
        {"type":"video_url","video_url":{"url":"https://example.org/v"}}],"role":"user"}""",
    rb"""{"role":"assistant","content":null,"refusal":null,"reasoning_content":"Two files.","annotations":[],
        "tool_calls":[{"id":"call_1","type":"function","index":0,"function":{"name":"read","arguments":"{\"path\": \"a\"}"}},
                      {"id":"call_2","type":"custom","custom":{"name":"grep","input":"x+ y"},"extra":[1e2]}]}""",
    rb'{"role":"tool","tool_call_id":"call_1","name":"read","content":"one\ntwo"}',
    rb'{"role":"tool","tool_call_id":"call_2","content":[{"type":"text","text":"hit"},{"type":"text","text":""}]}',
    rb'{"role":"assistant","content":"Done.","reasoning":"short","reasoning_details":[{"type":"reasoning.text"}]}',
    rb'{"role":"assistant","content":[{"type":"text","text":"I"},{"type":"refusal","refusal":"cannot"}]}',
    rb'{"role":"assistant","content":null,"refusal":"No, sorry."}',
    rb'{"role":"assistant"}',
    rb'{"role":"user","content":""}',
    rb'{"role":"assistant","content":[{"type":"text","text":"I"},{"type":"refusal","refusal":"in"}],"refusal":"out"}',
    rb"""{"role":"assistant","content":"Hm.","reasoning_content":"A","thinking_blocks":[
        {"type":"thinking","thinking":"A","signature":"c2ln"},{"type":"redacted_thinking","data":"c2VhbGVk"}]}""",
    rb'{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{ }"},"x":1}',
    rb'{"role":"user","content":[{"type":"image_url","image_url":"https://example.org/a.png"}]}',
    rb"""{"role":"assistant","tool_calls":[{"id":"call_3","type":"function","function":{"name":"f","arguments":{"a": 1.0}}},
        {"id":"call_4","function":{"name":"g","arguments":null}}]}""",
]

ANTHROPIC_MESSAGES: list[bytes] = [
    rb'{"role":"user","content":"Hello \u2603"}',
    rb"""{"role":"assistant","content":[
        {"type":"thinking","thinking":"Hm.","signature":"c2ln","x":0},
        {"type":"redacted_thinking","data":"c2VhbGVk"},
        {"type":"text","text":"Reading.","citations":null},
        {"type":"tool_use","id":"tu_1","name":"read","input":{ "path" : "a", "n": 1.0 },"cache_control":{"type":"ephemeral"}},
        {"type":"tool_use","id":"tu_2","name":"list","input":{}},
        {"type":"server_tool_use","id":"srv_1","name":"web_search","input":{"query":"q"}},
        {"type":"web_search_tool_result","tool_use_id":"srv_1","content":[{"type":"web_search_result","encrypted_content":"e"}]},
        {"type":"mcp_tool_use","id":"m_1","name":"n","server_name":"s","input":{}}]}""",
    rb"""{"role":"user","content":[
        {"type":"tool_result","tool_use_id":"tu_1","content":"text","is_error":true,"x":{}},
        {"type":"tool_result","tool_use_id":"tu_2","content":[{"type":"text","text":"a","x":1},
            {"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}},
            {"type":"search_result","source":"s","title":"t","content":[]},
            {"type":"tool_reference","tool_name":"t"}]},
        {"type":"tool_result","tool_use_id":"tu_3"},
        {"type":"text","text":"and now?"}], "x": [1, 2]}""",
    rb"""{"role":"user","content":[
        {"type":"image","source":{"type":"url","url":"https://example.org/a.png"},"cache_control":{"type":"ephemeral"}},
        {"type":"image","source":{"type":"file","file_id":"file_1"}},
        {"type":"image","source":{"type":"s3","bucket":"b"}},
        {"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"JVBERi0="},"title":"T"},
        {"type":"document","source":{"type":"text","media_type":"text/plain","data":"plain"},"context":"c"},
        {"type":"document","source":{"type":"url","url":"https://example.org/a.pdf"},"citations":{"enabled":true}},
        {"type":"document","source":{"type":"file","file_id":"file_2"}},
        {"type":"document","source":{"type":"content","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}},
        {"type":"document","source":{"type":"content","content":"whole"}},
        {"type":"container_upload","file_id":"file_3"},
        {"type":"compaction","content":"before"},
        {"type":"hologram","watts":9007199254740993}]}""",
    rb'{"role":"assistant","content":[]}',
    rb'{"role":"system","content":"Be brief from now on."}',
    rb'{"role":"system","clear_at":"next_user_message", "output_config":{}}',
    rb'{"role":"system","content":[{"type":"tool_addition","tool":{"type":"tool_reference","name":"t"}},{"type":"text","text":"t"}]}',
]

ANTHROPIC_SYSTEM = rb'[{"type":"text","text":"Be kind.","cache_control":{"type":"ephemeral", "ttl": "1h"}}]'

RESPONSES_ITEMS: list[bytes] = [
    rb'{"role":"developer","content":"Rules"}',
    (
        rb'{"type":"message","role":"user","content":[{"type":"input_text","text":"Look \u00e9"},'
        rb'{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo=","detail":"auto"},'
        rb'{"type":"input_image","file_id":"file-1","detail":"low"},'
        rb'{"type":"input_file","file_data":"data:application/pdf;base64,JVBERi0=","filename":"a.pdf"},'
        rb'{"type":"input_file","file_url":"https://example.org/a.pdf"},{"type":"input_file","file_id":"file-2"},'
        rb'{"type":"hologram","w":1}]}'
    ),
    rb'{"role": "user", "content": "easy"}',
    rb"""{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"a"},{"type":"summary_text","text":"b"}],
        "content":[{"type":"reasoning_text","text":"c"}],"encrypted_content":"gAAA","status":null}""",
    rb'{"type":"reasoning","id":"rs_2","summary":[],"encrypted_content":null}',
    rb'{"type":"function_call","id":"fc_1","call_id":"call_1","name":"read","arguments":"{ \"a\": 1 }","status":"completed"}',
    rb'{"type":"custom_tool_call","id":"ct_1","call_id":"call_2","name":"patch","input":"*** Begin"}',
    rb'{"type":"computer_call","id":"cc_1","call_id":"call_3","action":{"type":"click","x":1,"y":2},"pending_safety_checks":[]}',
    rb'{"type":"local_shell_call","id":"ls_1","call_id":"call_4","action":{"type":"exec","command":["ls"]},"status":"completed"}',
    rb'{"type":"shell_call","call_id":"call_5","action":{"commands":["ls", "pwd"],"timeout_ms":1000}}',
    rb'{"type":"apply_patch_call","call_id":"call_6","operation":{"type":"delete_file","path":"a"},"status":"completed"}',
    rb'{"type":"computer_call","call_id":"call_7","actions":[{"type":"wait"}]}',
    rb'{"type":"function_call_output","call_id":"call_1","output":"text","id":"fco_1"}',
    (
        rb'{"type":"function_call_output","call_id":"call_1","output":[{"type":"input_text","text":"t"},'
        rb'{"type":"input_image","image_url":"https://example.org/a.png"}]}'
    ),
    rb'{"type":"custom_tool_call_output","call_id":"call_2","output":"ok"}',
    (
        rb'{"type":"computer_call_output","call_id":"call_3","output":{"type":"computer_screenshot",'
        rb'"image_url":"data:image/png;base64,iVBORw0KGgo="},"acknowledged_safety_checks":[]}'
    ),
    rb'{"type":"local_shell_call_output","id":"call_4","output":"{\"stdout\":\"a\"}"}',
    (
        rb'{"type":"shell_call_output","call_id":"call_5","max_output_length":100,"output":['
        rb'{"stdout":"a\n","stderr":"","outcome":{"type":"exit","exit_code":0}},'
        rb'{"stdout":"b","stderr":"warn","outcome":{"type":"timeout"},"x":1}]}'
    ),
    rb'{"type":"apply_patch_call_output","call_id":"call_6","status":"failed","output":"no such file"}',
    (
        rb'{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":['
        rb'{"type":"output_text","text":"Done","annotations":[],"logprobs":[]},{"type":"refusal","refusal":"no"}]}'
    ),
    rb'{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"q"}}',
    rb'{"type":"mcp_list_tools","id":"mcpl_1","server_label":"s","tools":[]}',
    rb'{"type":"compaction","id":"cmp_1","encrypted_content":"gBBB"}',
    rb'{"type":"item_reference","id":"msg_0"}',
    rb'{"type":"hologram","watts":1e400}',
    rb'{"id":"msg_00"}',
    rb'{"id":"msg_01", "type":null}',
    rb'{"type":"computer_call","id":"cc_2","call_id":"call_8","pending_safety_checks":[]}',
    rb'{"type":"tool_search_call","call_id":"call_9","arguments":{ "query": "q" },"execution":"client"}',
    rb'{"type":"tool_search_output","call_id":"call_9","tools":[{"type":"function","name":"f"}],"execution":"client"}',
    rb'{"type":"tool_search_call","call_id":null,"arguments":{},"execution":"server"}',
    rb'{"type":"mcp_approval_request","id":"mcpr_1","name":"write","server_label":"s","arguments":"{}"}',
    rb'{"type":"mcp_approval_response","approval_request_id":"mcpr_1","approve":true}',
    rb'{"type":"teleport_call","call_id":"call_a","input":"\u00e9","watts":1}',
    rb'{"type":"teleport_call_output","call_id":"call_a","output":"there","watts":2}',
    rb'{"type":"additional_tools","role":"developer","tools":[]}',
    rb'{"type":"configuration_update","reasoning":{"effort":"low"}}',
    rb'{"type":"compaction_trigger"}',
]

ITEMS: dict[str, list[bytes]] = {
    "chat": CHAT_MESSAGES,
    "responses": RESPONSES_ITEMS,
    "anthropic": ANTHROPIC_MESSAGES,
}

CHAT_TOOLS = (
    rb'[{"type":"function","function":{"name":"read","description":"d","parameters":{"type":"object" }}}]'
)


def array(items: list[bytes]) -> bytes:
    return b"[ " + b" ,\n".join(items) + b" ]"


BODIES: dict[str, bytes] = {
    "chat": b'{ "model":"gpt-x", "messages" :'
    + array(CHAT_MESSAGES)
    + b', "tools": '
    + CHAT_TOOLS
    + b',"max_completion_tokens":10,"stream":true,"x_unknown":{"deep":[null]} }\n',
    "responses": b'{"model":"gpt-x","instructions":"Be \\u00fc.","input":'
    + array(RESPONSES_ITEMS)
    + b',"tools":[{"type":"function","name":"read","parameters":{}},{"type":"web_search"}],"max_output_tokens":99,"store":false}',
    "anthropic": b'{"model":"claude-x","max_tokens":1024,"system":'
    + ANTHROPIC_SYSTEM
    + b',"messages":'
    + array(ANTHROPIC_MESSAGES)
    + b',"tools":[{"name":"read","description":"d","input_schema":{"type":"object"}},'
    + b'{"type":"bash_20250124","name":"bash"}],"metadata":{"user_id":"u"}}',
}

DIALECTS: list[Dialect] = [CHAT, RESPONSES, ANTHROPIC]
