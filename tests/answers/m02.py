"""m02_tools: the solution, and answers that are wrong in a way that has a name."""

CHECKS = {"run_tool": ("tests/test_notebooks_m02.py",)}

ACT = '''
import json
import tinyharness

def act(session, chosen, arguments):
    """Given: run a tool. One that only plans returns a path and bytes, to be put in place."""
    done = chosen(session, **arguments)
    return tinyharness.replace_file(*done) if chosen.plans else done
'''
RUN_TOOL = ACT + '''
def run_tool(session, call, tools, approve=None):
    """Append exactly one result for this call, whatever happens."""
    name, said = call["function"]["name"], call["function"]["arguments"]
    result = f"interrupted by the user; {tinyharness.UNKNOWN}"
    try:
        if name not in tools:
            raise LookupError(f"there is no tool {name!r}, only {', '.join(tools)}")
        arguments = json.loads(said)
        refusal = approve(name, arguments) if approve and not tools[name].read_only else None
        result = f"refused: {refusal}" if refusal else str(act(session, tools[name], arguments))
    except (Exception, SystemExit) as error:
        result = f"error: {type(error).__name__}: {error}"
    finally:
        session.append({"role": "tool", "tool_call_id": call["id"], "content": result})
'''
CHAPTER = '''
import json

def run_tool(session, call, tools, approve=None):
    arguments = json.loads(call["function"]["arguments"])
    output = tools[call["function"]["name"]](session, **arguments)
    session.append({"role": "tool", "tool_call_id": call["id"], "content": output})
'''
GUARDED = ACT + '''
def run_tool(session, call, tools, approve=None):
    name, said = call["function"]["name"], call["function"]["arguments"]

    def answer(text):
        session.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    if name not in tools:
        return answer(f"error: there is no tool {name}")
    try:
        arguments = json.loads(said)
    except ValueError as error:
        return answer(f"error: {error}")
    refusal = approve(name, arguments) if approve and not tools[name].read_only else None
    if refusal:
        return answer(f"refused: {refusal}")
    try:
        answer(str(act(session, tools[name], arguments)))
    except (Exception, SystemExit) as error:
        answer(f"error: {type(error).__name__}: {error}")
    except KeyboardInterrupt:
        answer(f"interrupted by the user; {tinyharness.UNKNOWN}")
        raise
'''


def change(*pairs):
    """The solution with some of its lines replaced; each old text must be there once."""
    source = RUN_TOOL
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


INTERRUPTED = 'f"interrupted by the user; {tinyharness.UNKNOWN}"'
RESULT = ('        result = f"refused: {refusal}" if refusal '
          'else str(act(session, tools[name], arguments))\n')
CATCH = "    except (Exception, SystemExit) as error:\n"
ERROR = 'f"error: {type(error).__name__}: {error}"'
FINALLY = "    finally:\n    "
APPEND = '    session.append({"role": "tool", "tool_call_id": call["id"], "content": result})\n'

SOLUTION = {"run_tool": RUN_TOOL}
WRONG = {"run_tool": {  # the mistake: (the cell, words that the check must say)
    "the chapter's own: it works as long as nothing goes wrong": (CHAPTER, "but it ended the turn"),
    "the chapter's own, with a net for an unknown tool": (
        CHAPTER.replace("    arguments =", "    if call['function']['name'] not in tools:\n"
                        "        return f'Unknown tool {call}'\n    arguments ="),
        "where the tool is unknown, the log holds no result of the call, and it must hold exactly one"),
    "the result is returned and not stored": (
        change((FINALLY + APPEND, "    return result\n")), "run_tool stores no result, not even where all is well"),
    "sys.exit of a tool ends the agent": (
        change((CATCH, "    except Exception as error:\n")),
        "where the tool calls sys.exit, the model is to read it in a result"),
    "Ctrl-C is swallowed": (
        change((CATCH, "    except KeyboardInterrupt:\n        pass\n" + CATCH)), "cannot be stopped"),
    "every exception is an error, Ctrl-C too": (
        change((CATCH, "    except BaseException as error:\n")), "cannot be stopped"),
    "Ctrl-C leaves no result": (
        change((FINALLY + APPEND, APPEND)), "where Ctrl-C stops the tool, the log holds no result"),
    "only the tool is guarded, and not the question": (
        GUARDED,
        "where Ctrl-C comes while the user is asked, the log holds no result"),
    "what was interrupted is told as not executed": (
        change((INTERRUPTED, '"not executed: interrupted by the user"')), "claims too much"),
    "what was interrupted is told as cancelled": (
        change((INTERRUPTED, '"cancelled"')), "say that the outcome is unknown"),
    "the model is not told what went wrong": (
        change((ERROR, '"error"')), "the model must read the error in words"),
    "what failed is tried again": (
        change((RESULT, RESULT.replace("        result", "        try:\n            result")
                + "        except Exception:\n    " + RESULT)), "it ran 2 times"),
    "a refused call runs, and has two results": (
        change((RESULT, "        if refusal:\n            session.append({'role': 'tool', 'tool_call_id': "
                "call['id'], 'content': f'refused: {refusal}'})\n"
                "        result = str(act(session, tools[name], arguments))\n")),
        "where the user refuses, the log holds 2 results"),
    "what only reads is asked for": (
        change((" and not tools[name].read_only", "")), "a tool that only reads is not asked for"),
    "the plan is taken for the deed": (
        change(("str(act(session, tools[name], arguments))", "str(tools[name](session, **arguments))")),
        "write_file has only planned"),
    "what is no text is stored as it is": (
        change(("str(act(session, tools[name], arguments))", "act(session, tools[name], arguments)")),
        "a result is a text"),
}}
